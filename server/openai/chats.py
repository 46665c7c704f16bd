"""Answers a chat in any dialect: renders it with the model's template, and says which form the answer has."""

import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from aerie.contracts.errors import BadRequest
from aerie.server.openai.answer_form import AnswerForm
from aerie.server.openai.bodies import ChatBody, Message
from aerie.server.openai.respond import Dialect, answer
from aerie.server.openai.tools import ToolUse, read_tools
from aerie.server.service import Service

_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates turn reasoning on and off."""


async def answer_chat(service: Service, body: ChatBody, request: Request, dialect: Callable[..., Dialect]) -> Response:
    use = read_tools(body)
    if use is not None:
        check_tools(service)
    variables = template_variables(service, body, use)
    families = service.families
    form = AnswerForm(service.tokenizer, families.tools, families.reasoning, families.channels, use)

    async def prompts() -> list[list[int]]:
        context = service.ready().max_length
        return [await service.tokenizer.encode_chat(messages(service, body.messages), variables, context, shown(use))]

    return await answer(service, body, request, dialect, 1, prompts, form)


def check_tools(service: Service) -> None:
    """Raises BadRequest if the model's template cannot show tools, or no parser fits its calls."""
    template = service.tokenizer.tool_template
    if template is None or not template.reads("tools"):
        raise BadRequest(
            "tools is not supported: this model's chat template never mentions tools; leave them out, or set "
            "server.chat_template",
            param="tools",
            code="unsupported_field",
        )
    if not service.families.parses_calls:
        raise BadRequest(
            "tools is not supported: no tool-call parser fits this model's chat template; name one in "
            "server.tool_call_parser",
            param="tools",
            code="unsupported_field",
        )


def messages(service: Service, given: list[Message]) -> list[dict[str, Any]]:
    """The messages as the template takes them."""
    family = service.families.tools
    found = [_message(one, 0 if family is None else family.id_letters) for one in given]
    if service.families.channels is not None:  # as its template calls it
        found = [one | ({"thinking": one["reasoning"]} if "reasoning" in one else {}) for one in found]
    return found


def shown(use: ToolUse | None) -> list[dict[str, Any]] | None:
    return None if use is None else use.shown()


def template_variables(service: Service, body: ChatBody, use: ToolUse | None) -> dict[str, Any]:
    """`chat_template_kwargs`, and the reasoning effort as the template knows it. Raises BadRequest if it does not."""
    given, effort = body.chat_template_kwargs or {}, body.reasoning_effort
    template = service.tokenizer.template if use is None else service.tokenizer.tool_template
    if effort is None or template is None:
        return given
    if template.reads("reasoning_effort"):
        return {"reasoning_effort": effort, **given}
    switches = {name: effort != "none" for name in _SWITCHES if template.reads(name)}
    if not switches:
        raise BadRequest(
            "reasoning_effort is not supported: this model's chat template knows no effort of reasoning; leave it out",
            param="reasoning_effort",
            code="unsupported_field",
        )
    return {**switches, **given}


def _message(message: Message, id_letters: int) -> dict[str, Any]:
    data = message.as_data()
    if id_letters:
        for call in data.get("tool_calls", ()):
            call["id"] = _short_id(call.get("id") or "", id_letters)
        if data.get("tool_call_id"):
            data["tool_call_id"] = _short_id(data["tool_call_id"], id_letters)
    return data


def _short_id(id: str, letters: int) -> str:
    """The id if the template takes it, else another that is the same for the same id."""
    if re.fullmatch(rf"[a-zA-Z0-9]{{{letters}}}", id):
        return id
    return sha256(id.encode()).hexdigest()[:letters]
