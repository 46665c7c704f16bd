"""HTTP: the OpenAI API over a scheduler that lives in another process. No torch here.

request body -> protocol -> admission -> prompt (template, tokenize) -> engine_client -> choice (detokenize, stops) -> replies, SSE
"""
