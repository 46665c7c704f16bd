"""The API process: OpenAI over HTTP in front, the scheduler's messages behind. Torch is never imported here.

In the order that a request passes:

http         uvicorn's parser with a bound on heads; `gate`: request ids, API key, body limit, before anything is parsed
app          the application and its routes (openai_routes, token_routes, state_routes, platform_routes, playground)
             over one `service`
requests     strict JSON into `bodies`: what a request may say; `parameters` turns it into contracts
respond      from there to the answer, whole or streamed
admission    a bounded number of places, taken before any work is done
tokenizer    text and chat (`template`) to token ids
client       id -> `mailbox`: the one socket to the scheduler
generation   one HTTP request in flight; `connection` notices callers that leave
choice       one answer in the making: `detokenize` and `stops` turn committed tokens into text
answers      the OpenAI shapes of what came out (`logprobs`); `events` sends them as a stream
problems     errors in one shape
account      what is known of a request once it is over: its line (`request_log`) and its trace (`tracing`)
metrics      what /metrics says of requests, `state_metrics` of the rest; `head_watch` warns of a head that fails
run          uvicorn, drain, exit codes: what the composition root calls
"""
