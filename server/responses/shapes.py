"""Responses and their events as pydantic models, for the OpenAPI document. A test validates real ones against them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from aerie.server.openai.shapes import CachedTokens, SpeculationUsage, TokenLogprob

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(BaseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[TokenLogprob]


class ThoughtText(BaseModel):
    type: Literal["reasoning_text"]
    text: str


class OutputMessage(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Status
    content: list[OutputText]


class OutputReasoning(BaseModel):
    id: str
    type: Literal["reasoning"]
    summary: list[dict[str, Any]]
    content: list[ThoughtText]
    status: Status


class OutputCall(BaseModel):
    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    status: Status


OutputItem = Annotated[OutputMessage | OutputReasoning | OutputCall, Field(discriminator="type")]
OutputPart = Annotated[OutputText | ThoughtText, Field(discriminator="type")]


class Function(BaseModel):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class ReasoningTokens(BaseModel):
    reasoning_tokens: int


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int
    speculation: SpeculationUsage


class CutReason(BaseModel):
    reason: Literal["max_output_tokens"]


class ResponseFailure(BaseModel):
    code: str
    message: str
    type: str


class ResponseFormatText(BaseModel):
    type: Literal["text", "json_object"]


class ResponseFormatSchema(BaseModel):
    type: Literal["json_schema"]
    name: str | None
    description: str | None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")]
    strict: bool


class ResponseText(BaseModel):
    format: Annotated[ResponseFormatText | ResponseFormatSchema, Field(discriminator="type")]


class ResponseReasoning(BaseModel):
    effort: str | None
    summary: None


class ResponseResource(BaseModel):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    incomplete_details: CutReason | None
    error: ResponseFailure | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    instructions: str | None
    tools: list[Function]
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any]
    parallel_tool_calls: bool
    text: ResponseText
    reasoning: ResponseReasoning
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    previous_response_id: None
    store: Literal[False]
    background: Literal[False]
    truncation: Literal["disabled"]
    service_tier: Literal["default"]


class _Event(BaseModel):
    sequence_number: int


class WholeEvent(_Event):
    """The first two events, and the one that ends the stream."""

    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
    ]
    response: ResponseResource


class ItemEvent(_Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class _PieceEvent(_Event):
    item_id: str
    output_index: int


class PartEvent(_PieceEvent):
    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    part: OutputPart


class TextDelta(_PieceEvent):
    type: Literal["response.output_text.delta"]
    content_index: int
    delta: str
    logprobs: list[TokenLogprob]


class TextDone(_PieceEvent):
    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    logprobs: list[TokenLogprob]


class ReasoningDelta(_PieceEvent):
    type: Literal["response.reasoning_text.delta"]
    content_index: int
    delta: str


class ReasoningDone(_PieceEvent):
    type: Literal["response.reasoning_text.done"]
    content_index: int
    text: str


class ArgumentsDelta(_PieceEvent):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(_PieceEvent):
    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


EVENTS = (
    WholeEvent,
    ItemEvent,
    PartEvent,
    TextDelta,
    TextDone,
    ReasoningDelta,
    ReasoningDone,
    ArgumentsDelta,
    ArgumentsDone,
)
