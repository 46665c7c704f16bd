"""The API process: speaks the OpenAI API over HTTP to clients, and messages to the scheduler. Never imports torch.

The parts, each of which imports only parts above it:

http        the parser's bounds on heads, connections and time; `gate`: request ids, API key, body limit, before
            anything is parsed; `problems`: errors in one shape
text        tokenizer and chat templates: text to token ids; `detokenize` and `stops`: committed tokens to text
parsing     `regions`: an answer's reasoning, content and tool calls, as events while its text grows
dispatch    `admission`: places, taken before any work is done; `client`: the one socket to the scheduler; `mailbox`
telemetry   `account`: the record of a finished request, for its log line and its trace; metrics; `head_watch`
service     the parts of a running server in one value
openai      a request: `requests` parses JSON into `bodies`, `parameters` checks them, `respond` runs a `generation`,
            whose `choice`s grow token by token; `answers` and `events` send them
responses   the dialect of /v1/responses: `conversation` makes a chat of a request, `items` of an answer's regions
playground  the page at `/`
routes      the paths of the API
app, run    the application; uvicorn, drain, exit codes. The composition root calls `run`
"""
