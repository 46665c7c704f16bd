"""The API process: speaks the OpenAI API over HTTP to clients, and messages to the scheduler. Never imports torch.

The modules, in the order in which a request passes them:

http         uvicorn's parser with a bound on heads; `gate`: request ids, API key, body limit, before anything is parsed
app          the application and its routes (openai_routes, token_routes, state_routes, platform_routes, playground)
             over one `service`
requests     parses strict JSON into `bodies`, the request models; `parameters` turns them into contracts
respond      turns a parsed body into its answer, whole or streamed
admission    a bounded number of places, taken before any work is done
tokenizer    text and chat (`template`) to token ids
client       id -> `mailbox`: the one socket to the scheduler
generation   one HTTP request in flight; `connection` notices callers that disconnect
choice       one answer as it grows: `detokenize` and `stops` turn committed tokens into text
answers      the OpenAI shapes of answers (`logprobs`); `events` sends them as a stream
problems     errors in one shape
account      the record of a finished request: source of its log line (`request_log`) and its trace (`tracing`)
metrics      request metrics; `state_metrics` adds the rest; `head_watch` warns of a head with low acceptance
run          uvicorn, drain, exit codes; called by the composition root
"""
