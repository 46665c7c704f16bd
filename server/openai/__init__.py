"""The OpenAI API: bodies, checked parameters, a request in flight, and its answer, whole or streamed."""
