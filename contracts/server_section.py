"""The sections `server` and `limits` of a config: the HTTP front end, and what a request may ask for."""

from typing import Literal

from pydantic import Field

from aerie.contracts.section import Section

_ROUTE = r"^/[\w./-]+$"
_MAX_SECONDS = 1e6
"""Upper limit of settings in seconds: eleven days."""


class ServerConfig(Section):
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8000, ge=0, le=65535)
    """The port to listen on; 0 takes a free one."""
    api_key: str | None = Field(default=None, min_length=1)
    """Bearer token required by every route except /health, /ready, /version and /metrics; never shown."""
    playground: bool = True
    """Serve the playground page at /."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may call the API; `*` for all."""
    keep_alive_seconds: float = Field(default=75.0, ge=0, le=_MAX_SECONDS)
    """How long an idle connection stays open; choose more than a proxy's timeout, so that the proxy closes first."""
    header_seconds: float = Field(default=20.0, gt=0, le=_MAX_SECONDS)
    """How long a request's headers may take to arrive; after that it is answered 408."""
    body_seconds: float = Field(default=60.0, gt=0, le=_MAX_SECONDS)
    """How long a request's body may take after that."""
    max_connections: int = Field(default=1000, ge=1)
    """Connections at once. One more closes the connection whose client has been quiet for longest; if all wait for
    answers, the new one is answered 503."""
    ping_seconds: float = Field(default=15.0, gt=0, le=_MAX_SECONDS)
    """Time between comments on a silent stream."""
    drain_seconds: float = Field(default=30.0, ge=0, le=_MAX_SECONDS)
    """How long SIGTERM waits for running requests to finish."""
    chat_template: str | None = None
    """A file that replaces the tokenizer's chat template."""
    tool_call_parser: str = "auto"
    """Which markup tool calls have in answers: a family such as hermes, none, or auto, which looks at the chat
    template."""
    reasoning_parser: str = "auto"
    """Which markup reasoning has in answers: a family such as qwen3, none, or auto, which looks at the chat template.
    """
    special_tokens_in_content: Literal["text", "tokens"] = "text"
    """How to read control tokens, such as the end of a turn, that a chat message spells out: as plain text or as the
    tokens."""
    health_route: str | None = Field(default=None, pattern=_ROUTE)
    """A second path that answers as /ready does, for managed platforms that choose one."""
    predict_route: str | None = Field(default=None, pattern=_ROUTE)
    """A second path for requests: bodies of the OpenAI API, one alone or several as `instances`."""
    log_requests: bool = True
    """Write one JSON line for each finished request to stderr."""
    log_prompts: bool = False
    """Include the text of prompts in these lines."""
    trace_url: str | None = None
    """An OTLP/HTTP collector for spans of each request, such as http://127.0.0.1:4318; needs the extra `traces`."""


class LimitsConfig(Section):
    max_body_bytes: int = Field(default=4 << 20, ge=1)
    """The largest request body; a larger one is answered 413."""
    max_choices: int = Field(default=16, ge=1)
    """The largest `n`."""
    max_stop_strings: int = Field(default=16, ge=0)
    """The most stop strings in a request."""
    max_stop_length: int = Field(default=256, ge=1)
    """The most characters in a stop string."""
    temperature_max: float = Field(default=2.0, ge=0, allow_inf_nan=False)
    """The highest temperature."""
    require_seed: bool = False
    """Reject sampled requests without a seed."""
    queue_seconds: float = Field(default=60.0, gt=0, le=_MAX_SECONDS)
    """How long a request may wait while no row, no edit slot or too few KV pages are free; then it is answered 503."""
    total_seconds: float = Field(default=600.0, gt=0, le=_MAX_SECONDS)
    """How long a request may take in total; after that it ends with an error."""
    grammar_bytes: int = Field(default=64 << 10, ge=1)
    """The most bytes of a JSON schema, a regular expression or a grammar that an answer must match."""
    grammar_nesting: int = Field(default=64, ge=1)
    """The deepest nesting of its brackets."""
    grammar_seconds: float = Field(default=5.0, gt=0, le=_MAX_SECONDS)
    """How long building it may take; after that the request is answered 400."""
