"""Load tests over HTTP against any server with OpenAI's API. This package imports nothing of Aerie."""
