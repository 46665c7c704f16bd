"""The API process: OpenAI over HTTP in front, the scheduler's messages behind. Torch is never imported here.

In the order that a request passes:

gate         request ids, API key, body limit: before anything is parsed
app          the application and its routes (openai_routes, token_routes, state_routes) over one `service`
requests     strict JSON into `bodies`: what a request may say; `parameters` turns it into contracts
respond      from there to the answer, whole or streamed
admission    a bounded number of places, taken before any work is done
tokenizer    text and chat (`template`) to token ids
client       id -> `mailbox`: the one socket to the scheduler
generation   one HTTP request in flight; `connection` notices callers that leave
choice       one answer in the making: `detokenize` and `stops` turn committed tokens into text
answers      the OpenAI shapes of what came out (`logprobs`); `events` sends them as a stream
problems     errors in one shape
metrics      what /metrics says; `log` writes one line per request
run          uvicorn (`http`), drain, exit codes: what the composition root calls
"""
