"""A responses body as the chat that it stands for: items become messages, and flat tools and formats nested ones.

Called by the route. The chat is checked and answered as any other; `Conversation.renamed` gives the errors about it the
names of the fields that the caller sent.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from aerie.contracts.errors import BadRequest
from aerie.server.http.faults import explain
from aerie.server.openai.bodies import AnswerBody, ChatBody
from aerie.server.responses.bodies import (
    CallItem,
    CallOutputItem,
    Content,
    FlatTool,
    Item,
    MessageItem,
    ResponseBody,
    TextFormat,
)

LOGPROBS = "message.output_text.logprobs"
"""What `include` lists to get them."""
_OWN = {"stream_options", "store"}
"""Fields of the same name, but another meaning, in a chat. Responses say themselves that they are not stored."""
_NAMES = {
    "reasoning_effort": "reasoning.effort",
    "tool_choice.function": "tool_choice",
    "max_completion_tokens": "max_output_tokens",
}
"""A chat's names of fields that a response has under others."""


@dataclass
class Conversation:
    """The chat, and where its parts stand in the request."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    """For each message, the field that it came from."""
    tools: list[int] = field(default_factory=list)
    """For each of the chat's tools, its index in the request."""
    ignored: list[str] = field(default_factory=list)
    """Types of tools that this server does not have."""

    def add(self, message: dict[str, Any], origin: str) -> None:
        self.messages.append(message)
        self.origins.append(origin)

    def turn(self, origin: str) -> dict[str, Any]:
        """The assistant's open turn, which reasoning, text and calls that follow each other share."""
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != "assistant":
            last = {"role": "assistant", "content": None}
            self.add(last, origin)
        return last

    def renamed(self, error: BadRequest) -> BadRequest:
        """The error with the caller's names for the chat's fields."""
        param = "input" if error.param == "messages" else self._rename(error.param or "") or None
        return BadRequest(self._rename(error.message), param=param, code=error.code)

    def _rename(self, text: str) -> str:
        text = re.sub(r"\bmessages\[(\d+)\][\w.\[\]]*", lambda found: self.origins[int(found[1])], text)
        text = re.sub(r"\btools\[(\d+)\](\.function)?", lambda found: f"tools[{self.tools[int(found[1])]}]", text)
        text = re.sub(r"\bresponse_format(\.json_schema)?\b", "text.format", text)
        for chats, own in _NAMES.items():
            text = text.replace(chats, own)
        return text


def read(body: ResponseBody) -> tuple[ChatBody, Conversation]:
    """Raises BadRequest about what no chat can hold."""
    conversation = Conversation()
    if body.instructions is not None:
        conversation.add({"role": "system", "content": body.instructions}, "instructions")
    items = [MessageItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    for place, item in enumerate(items):
        _add_item(conversation, item, f"input[{place}]")
    if not items and body.instructions is None:
        conversation.add({"role": "user", "content": ""}, "input")
    data = _shared(body) | {"messages": conversation.messages, "max_completion_tokens": body.max_output_tokens}
    data |= _logprobs(body) | _tools(body, conversation)
    if body.text is not None and body.text.format is not None:
        data["response_format"] = _format(body.text.format)
    if body.reasoning is not None and body.reasoning.effort is not None:
        data["reasoning_effort"] = body.reasoning.effort
    try:
        return ChatBody.model_validate(data), conversation
    except ValidationError as error:
        message, param = explain([{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()])
        raise conversation.renamed(BadRequest(message, param=param)) from None


def _shared(body: ResponseBody) -> dict[str, Any]:
    """The fields that mean the same in a chat, and those that a response does not declare."""
    declared = body.model_dump(
        mode="json",  # with texts as keys, as they came
        include={*AnswerBody.model_fields, "chat_template_kwargs"},
        exclude_unset=True,
        by_alias=True,
    )
    return declared | {name: value for name, value in (body.model_extra or {}).items() if name not in _OWN}


def _add_item(conversation: Conversation, item: Item, origin: str) -> None:
    if isinstance(item, MessageItem) and item.role != "assistant":
        conversation.add({"role": item.role, "content": _text(item.content)}, origin)
    elif isinstance(item, MessageItem):
        turn = conversation.turn(origin)
        turn["content"] = (turn["content"] or "") + _text(item.content)
    elif isinstance(item, CallItem):
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        conversation.turn(origin).setdefault("tool_calls", []).append(call)
    elif isinstance(item, CallOutputItem):
        conversation.add({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}, origin)
    elif item.content:
        turn = conversation.turn(origin)
        turn["reasoning_content"] = turn.get("reasoning_content", "") + "".join(part.text for part in item.content)


def _text(content: Content) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _logprobs(body: ResponseBody) -> dict[str, Any]:
    if body.top_logprobs or LOGPROBS in (body.include or ()):
        return {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    return {}


def _tools(body: ResponseBody, conversation: Conversation) -> dict[str, Any]:
    """The functions, and the choice among them. Notes the tools of other types."""
    functions = []
    for place, tool in enumerate(body.tools or ()):
        if tool.type == "function":
            functions.append({"type": "function", "function": {**(tool.model_extra or {})}})
            conversation.tools.append(place)
        else:
            conversation.ignored.append(tool.type)
    data: dict[str, Any] = {"tools": functions} if functions else {}
    if body.parallel_tool_calls is not None and functions:
        data["parallel_tool_calls"] = body.parallel_tool_calls
    if body.tool_choice is not None:
        data["tool_choice"] = body.tool_choice if isinstance(body.tool_choice, str) else _choice(body.tool_choice)
    return data


def _choice(choice: dict[str, Any]) -> dict[str, Any]:
    kind = choice.get("type")
    if kind == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if kind == "allowed_tools":
        allowed = [_choice(tool) for tool in choice.get("tools") or () if isinstance(tool, dict)]
        return {"type": kind, "allowed_tools": {"mode": choice.get("mode", "auto"), "tools": allowed}}
    raise BadRequest(
        "tool_choice.type must be function or allowed_tools; this server has no other tools", param="tool_choice.type"
    )


def _format(wanted: TextFormat) -> dict[str, Any]:
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    return {"type": "json_schema", "json_schema": {**(wanted.model_extra or {})}}


def functions(tools: list[FlatTool] | None) -> list[dict[str, Any]]:
    """The request's functions as a response lists them."""
    named = ("name", "description", "parameters", "strict")
    return [
        {"type": "function"} | {name: (tool.model_extra or {}).get(name) for name in named}
        for tool in tools or ()
        if tool.type == "function"
    ]
