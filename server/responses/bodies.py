"""The body of /v1/responses as a pydantic model. Fields that it shares with chats are declared in `openai.bodies`.

Used by the route. What the API has and this server cannot do is an error that names it: `refuse` for fields, the types
of items and parts for the rest.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag
from pydantic_core import PydanticCustomError

from aerie.contracts.errors import BadRequest
from aerie.contracts.sampling import MAX_LOGPROBS
from aerie.server.openai.bodies import AnswerBody, Metadata
from aerie.server.openai.body import Body, Few, Variables, either, text_or_list
from aerie.server.openai.distribution import range_of

MAX_NAME = 128
"""Characters of a call's id and of a function's name."""

_NOT_KEPT = "this server keeps no responses; send the whole conversation in input"
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "previous_response_id": ((None,), _NOT_KEPT),
    "conversation": ((None,), _NOT_KEPT),
    "prompt": ((None,), "this server keeps no prompts; send instructions and input"),
    "background": ((None, False), "this server keeps no responses; wait for the answer, or send stream: true"),
    "n": ((None, 1), "a response has one answer"),
    "messages": ((None,), "here its name is input"),
    "max_tokens": ((None,), "here its name is max_output_tokens"),
    "max_completion_tokens": ((None,), "here its name is max_output_tokens"),
    "response_format": ((None,), "here its name is text.format"),
    "functions": ((None, []), "here its name is tools"),
    "function_call": ((None, "none", "auto"), "here its name is tool_choice"),
    "reasoning_effort": ((None,), "here its name is reasoning.effort"),
    "logprobs": ((None, False), "here its name is top_logprobs"),
}
"""Fields that cannot be served, with the values that ask for nothing, and what to do instead."""


def _kind_of_part(value: Any) -> str:
    return "a refusal" if isinstance(value, dict) and value.get("type") == "refusal" else "a text part"


def _kind_of_choice(value: Any) -> str | None:
    return "a text" if isinstance(value, str) else "an object" if isinstance(value, dict) else None


def _known_item(value: Any) -> Any:
    """Names the type of an item that this server does not take."""
    kind = value.get("type", "message") if isinstance(value, dict) else "message"
    if isinstance(kind, str) and kind not in ITEMS:
        context = {"given": kind[:64], "known": ", ".join(ITEMS)}
        raise PydanticCustomError("unknown_item", 'is of the type "{given}"; this server takes {known}', context)
    return value


def _kind_of_item(value: Any) -> str | None:
    kind = value.get("type", "message") if isinstance(value, dict) else None
    return f"item {kind}" if isinstance(kind, str) else None


class ItemText(Body):
    """A piece of text. Who wrote it decides its type."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class ItemRefusal(Body):
    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


Content = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[
        Few[
            Annotated[
                Annotated[ItemText, Tag("a text part")] | Annotated[ItemRefusal, Tag("a refusal")],
                either(_kind_of_part, "a text part"),
            ]
        ],
        Tag("a list"),
    ],
    either(text_or_list, "a string or a list of text parts"),
]


class MessageItem(Body):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class CallItem(Body):
    """A call that the model made in an earlier turn."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    arguments: str


class CallOutputItem(Body):
    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    output: Content


class ItemReasoning(Body):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Body):
    """What the model thought in an earlier turn. Its summary is not the model's own text, and is not read."""

    type: Literal["reasoning"]
    content: Few[ItemReasoning] | None = None


ITEMS = ("message", "function_call", "function_call_output", "reasoning")
Item = Annotated[
    Annotated[
        Annotated[MessageItem, Tag("item message")]
        | Annotated[CallItem, Tag("item function_call")]
        | Annotated[CallOutputItem, Tag("item function_call_output")]
        | Annotated[ReasoningItem, Tag("item reasoning")],
        either(_kind_of_item, "an item of the conversation"),
    ],
    BeforeValidator(_known_item),
]
Input = Annotated[
    Annotated[str, Tag("a text")] | Annotated[Few[Item], Tag("a list")],
    either(text_or_list, "a string or a list of items"),
]


class FlatTool(Body):
    """A function, whose other fields the chat's tool checks; tools of other types are left out of the request."""

    type: Annotated[str, Field(min_length=1, max_length=64)]


class TextFormat(Body):
    """Its other fields are those of a chat's `json_schema`."""

    type: Literal["text", "json_object", "json_schema"]


class TextOptions(Body):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(Body):
    effort: Annotated[str, Field(min_length=1, max_length=32)] | None = None


Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("a text")] | Annotated[Variables, Tag("an object")],
    either(_kind_of_choice, "none, auto, required, or an object that names tools"),
]


class ResponseBody(AnswerBody):
    input: Input
    instructions: str | None = None
    max_output_tokens: Annotated[int, range_of("max_tokens")] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    include: Few[str] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: Few[FlatTool] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    chat_template_kwargs: Variables | None = None
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


def refuse(body: ResponseBody) -> None:
    """Raises a BadRequest that names every field that this server would have to ignore."""
    given = body.model_extra or {}
    names = [name for name, (neutral, _) in REFUSED.items() if name in given and given[name] not in neutral]
    if names:
        reasons = (f"{name} is not supported: {REFUSED[name][1]}" for name in names)
        raise BadRequest("; ".join(reasons), param=names[0], code="unsupported_field")
    if body.text is not None and body.text.verbosity not in (None, "medium"):
        raise BadRequest(
            "text.verbosity is not supported: say in instructions how long the answer should be",
            param="text.verbosity",
            code="unsupported_field",
        )
