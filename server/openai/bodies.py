"""Request bodies as pydantic models: the shapes of OpenAI plus the extensions that vLLM's users know.

Used by the routes; FastAPI builds the OpenAPI document from them. Unknown fields are ignored, except those in
`unsupported`, which would change the answer: they are rejected unless set to a neutral value.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, Tag

from aerie.contracts.sampling import INT32_MAX, MAX_LOGPROBS
from aerie.contracts.step import MAX_NODES
from aerie.server.openai.body import Body, Few, Items, Variables, either, few_fields, text_or_list
from aerie.server.openai.distribution import DistributionBody, range_of
from aerie.server.openai.token_fields import Biases, Words
from aerie.server.openai.tool_bodies import MadeCall, ToolChoice, Tools


def _kind_of_prompt(value: Any) -> str | None:
    """Decided by the first item if the value is a list."""
    if isinstance(value, str):
        return "a text"
    if not isinstance(value, list):
        return None
    first = value[0] if value else ""
    if isinstance(first, str):
        return "several texts"
    if isinstance(first, list):
        return "several lists"
    return "token ids" if isinstance(first, int) and not isinstance(first, bool) else None


TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
Stop = Annotated[
    Annotated[str, Tag("a text")] | Annotated[Items[str], Tag("a list")],
    either(text_or_list, "a string or a list of strings"),
]
Prompt = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[Few[str], Tag("several texts")]
    | Annotated[Items[TokenId], Tag("token ids")]
    | Annotated[Few[Items[TokenId]], Tag("several lists")],
    either(_kind_of_prompt, "a string, token ids, a list of strings, or a list of lists of token ids"),
]


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SpeculationOptions(Body):
    """An extension of Aerie: how this request speculates. It changes the speed, never the text. Only clients of Aerie
    send it, so an unknown key is an error.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    enabled: bool = True
    max_draft_tokens: Annotated[int, Field(ge=0, le=MAX_NODES - 1)] | None = None
    spans: bool = False
    """Adds `spans` to the choices: the text in pieces, each `[text, drafted]`."""
    trees: bool = False
    """Adds `trees` to the choices: each step's draft tree and its accepted path."""


def _kind_of_schema(value: Any) -> str | None:
    return "an object" if isinstance(value, dict) else "a text" if isinstance(value, str) else None


Schema = Annotated[
    Annotated[dict[str, Any], Tag("an object")] | Annotated[str, Tag("a text")],
    either(_kind_of_schema, "a JSON schema: an object, or its text"),
]
"""Its size is checked where its grammar is made, off the event loop."""
Choices = Annotated[Few[str], Field(min_length=1)]


class JsonSchema(Body):
    name: str | None = None
    description: str | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's form of structured output."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Body):
    """vLLM's form of it: one of these."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    json_: Annotated[Schema | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None


class AnswerBody(Body, DistributionBody):
    """The fields that all requests for an answer share. Those that shape the distribution come from their table."""

    model: str | None = None
    min_tokens: Annotated[int, range_of("min_tokens")] | None = None
    stop: Stop | None = None
    stop_token_ids: Items[TokenId] | None = None
    logit_bias: Biases | None = None
    allowed_token_ids: Items[TokenId] | None = None
    bad_words: Words | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    seed: Annotated[int, range_of("seed")] | None = None
    stream: bool | None = None
    return_token_ids: bool | None = None
    speculation: SpeculationOptions | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None


class GenerateBody(AnswerBody):
    """The fields that chats and completions share."""

    max_tokens: Annotated[int, range_of("max_tokens")] | None = None
    n: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None


class TextPart(Body):
    type: Literal["text"]
    text: str


Content = Annotated[
    Annotated[str, Tag("a text")] | Annotated[Few[TextPart], Tag("a list")],
    either(text_or_list, "a string or a list of text parts"),
]


class Message(Body):
    """One message. The chat template can read its other fields, such as `name`."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Content | None = None
    tool_calls: Few[MadeCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    def as_data(self) -> dict[str, Any]:
        """As templates take it: arguments are an object, content is a text."""
        content = self.content
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        data = {**(self.model_extra or {}), "role": self.role, "content": "" if content is None else content}
        if self.tool_calls:
            data["tool_calls"] = [call.as_data() for call in self.tool_calls]
        if self.tool_call_id is not None:
            data["tool_call_id"] = self.tool_call_id
        thought = self.reasoning_content if self.reasoning is None else self.reasoning
        return data if thought is None else data | {"reasoning": thought, "reasoning_content": thought}


Metadata = Annotated[
    dict[str, Annotated[str, Field(max_length=512)]], Field(max_length=16), BeforeValidator(few_fields)
]


class ChatBody(GenerateBody):
    messages: Annotated[Few[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, range_of("max_tokens")] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    chat_template_kwargs: Variables | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[str, Field(min_length=1, max_length=32)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "default", "flex", "priority", "scale", "fast"] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None


class CompletionBody(GenerateBody):
    prompt: Prompt
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_special_tokens: bool | None = None


class TokenizeBody(Body):
    """Takes a text in `prompt` or a chat in `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Few[Message] | None = None
    tools: Tools | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: Variables | None = None


class DetokenizeBody(Body):
    model: str | None = None
    tokens: Items[TokenId]
    skip_special_tokens: bool | None = None
