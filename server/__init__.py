"""The API process: OpenAI over HTTP in front, the scheduler's messages behind. Torch is never imported here.

In the order that a request passes:

gate         request ids, API key, body limit: before anything is parsed
app          the application and its routes (openai_routes, token_routes, state_routes), errors in one shape
bodies       what a request may say; `parameters` turns it into contracts
admission    a bounded number of places, taken before any work is done
tokenizer    text and chat (`template`) to token ids
client       id -> mailbox: the one socket to the scheduler
generation   one HTTP request in flight: submit, follow, abort whatever happens
choice       one answer in the making: `detokenize` and `stops` turn committed tokens into text
answers      the OpenAI shapes of what came out; `events` sends them as a stream
metrics      counters for /metrics; `log` writes one line per request
run          uvicorn, drain, exit codes: what the composition root calls
"""
