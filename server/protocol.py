"""The bodies of requests, as the field writes them: OpenAI's fields, and the extensions of vLLM and SGLang that people send."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from contracts.sampling import MAX_LOGPROBS

Count = Annotated[StrictInt, Field(ge=1, le=2**31 - 1)]
TokenId = Annotated[StrictInt, Field(ge=0, le=2**31 - 1)]
Real = Annotated[float, Field(allow_inf_nan=False)]


class StreamOptions(BaseModel):
    include_usage: StrictBool = False
    continuous_usage_stats: StrictBool = False


class Speculation(BaseModel):
    """How far this request may be drafted for; its text is the same either way."""

    enabled: StrictBool = True
    max_draft_tokens: Annotated[StrictInt, Field(ge=0, le=63)] | None = None


class ContentPart(BaseModel):
    type: StrictStr
    text: StrictStr | None = None


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="allow")
    role: StrictStr
    content: StrictStr | list[ContentPart] | None = None


class SamplingBody(BaseModel):
    """What chat and plain completions share. Fields of `unsupported` are declared nowhere: see server/unsupported.py."""

    model_config = ConfigDict(extra="allow")
    model: StrictStr | None = None
    max_tokens: Count | None = None
    min_tokens: Annotated[StrictInt, Field(ge=0)] = 0
    temperature: Annotated[Real, Field(ge=0)] | None = None
    top_p: Annotated[Real, Field(gt=0, le=1)] | None = None
    top_k: Annotated[StrictInt, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[Real, Field(ge=0, le=1)] | None = None
    seed: Annotated[StrictInt, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[StrictInt, Field(ge=1)] = 1
    stop: StrictStr | list[StrictStr] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: StrictBool = False
    ignore_eos: StrictBool = False
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    speculation: Speculation = Speculation()
    return_token_ids: StrictBool = False
    cache_salt: Annotated[StrictStr, Field(max_length=128)] | None = None
    user: StrictStr | None = None


class ChatBody(SamplingBody):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: StrictBool = False
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_generation_prompt: StrictBool = True


class CompletionBody(SamplingBody):
    prompt: StrictStr | list[StrictStr] | list[TokenId] | list[list[TokenId]]
    logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] | None = None


class TokenizeBody(BaseModel):
    model: StrictStr | None = None
    prompt: StrictStr | None = None
    messages: list[ChatMessage] | None = None
    add_generation_prompt: StrictBool = True
    add_special_tokens: StrictBool = True


class DetokenizeBody(BaseModel):
    model: StrictStr | None = None
    tokens: list[TokenId]


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """Every answer that is not 2xx, and every error event in a stream."""

    error: ErrorDetail


FinishReason = Literal["stop", "length"]
Json = dict[str, Any]
