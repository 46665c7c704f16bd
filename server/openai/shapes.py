"""Answers as pydantic models: for the OpenAPI document, and for routes with small answers.

`answers` writes the large ones as plain data; a test validates its output against these models.
"""

from typing import Any, Literal

from pydantic import BaseModel

Finish = Literal["stop", "length", "tool_calls"] | None


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[Model]


class Ids(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Text(BaseModel):
    prompt: str


class Status(BaseModel):
    status: str


class Version(BaseModel):
    version: str


class Settings(BaseModel):
    """The resolved configuration and the engine's report."""

    version: str
    config: dict[str, Any]
    engine: dict[str, str | int | float | bool | None]


class CachedTokens(BaseModel):
    cached_tokens: int


class ReasoningTokens(BaseModel):
    reasoning_tokens: int


class SpeculationUsage(BaseModel):
    steps: int
    drafted: int
    accepted: int
    acceptance_length: float | None
    accepted_per_position: list[int]
    forbidden: int


class UsageSoFar(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class WholeUsage(UsageSoFar):
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens
    speculation: SpeculationUsage


class RankedToken(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(RankedToken):
    top_logprobs: list[RankedToken]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class Tree(BaseModel):
    """A step's draft: nodes below the root (-1), and the accepted path."""

    token_ids: list[int]
    texts: list[str]
    parents: list[int]
    accepted: list[int]


class _Choice(BaseModel):
    index: int
    finish_reason: Finish
    stop_reason: str | int | None = None
    token_ids: list[int] = []
    """Present with `return_token_ids`, as is `drafted`."""
    drafted: list[bool] = []
    spans: list[tuple[str, bool]] = []
    """Present with `speculation.spans`."""
    trees: list[Tree] = []
    """Present with `speculation.trees`."""


class CalledFunction(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class CalledFunctionDelta(BaseModel):
    name: str | None = None
    arguments: str


class ToolCallDelta(BaseModel):
    """The first of a call has its id, type and name; the others more of its arguments."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunctionDelta


class _Reasoned(BaseModel):
    reasoning: str | None = None
    reasoning_content: str | None = None
    """The same under its other name."""


class AssistantMessage(_Reasoned):
    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] = []


class AssistantDelta(_Reasoned):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] = []


class ChatChoice(_Choice):
    message: AssistantMessage
    logprobs: ChatLogprobs | None


class ChatChunkChoice(_Choice):
    delta: AssistantDelta
    logprobs: ChatLogprobs | None


class CompletionChoice(_Choice):
    text: str
    logprobs: CompletionLogprobs | None
    prompt_token_ids: list[int] = []


class _Answer(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatAnswer(_Answer):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: WholeUsage
    prompt_token_ids: list[int] = []


class ChatChunk(_Answer):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: WholeUsage | UsageSoFar | None = None
    prompt_token_ids: list[int] = []


class CompletionAnswer(_Answer):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: WholeUsage


class Predictions(BaseModel):
    predictions: list[ChatAnswer | CompletionAnswer]


class CompletionChunk(_Answer):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: WholeUsage | UsageSoFar | None = None


def answered(whole: Any, *chunks: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The responses of a route that answers whole, or as a stream of `chunks` if the request asks for it."""
    description = "The answer; with `stream` its events, each `data: ` and a chunk, the last `data: [DONE]`"
    chunk: dict[str, Any] = {"anyOf": [{"$ref": f"#/components/schemas/{one.__name__}"} for one in chunks]}
    return {200: {"model": whole, "description": description, "content": {"text/event-stream": {"schema": chunk}}}}


PREDICTED = answered(ChatAnswer | CompletionAnswer | Predictions, ChatChunk, CompletionChunk)
