"""What a chat's tools ask for: which of them the template shows, and whether the answer has to call one.

Called by `answer_form`. Every contradiction is a BadRequest that names its field.
"""

from dataclasses import dataclass
from typing import Any

from aerie.contracts.errors import BadRequest
from aerie.server.openai.bodies import ChatBody
from aerie.server.openai.tool_bodies import AllowedChoice, NamedTool, Tool


@dataclass(frozen=True, slots=True)
class ToolUse:
    tools: tuple[Tool, ...]
    """Those that the template shows."""
    callable: tuple[Tool, ...]
    """Those that the answer may call."""
    forced: bool
    """The answer has to call one."""
    one_call: bool
    """It calls no more than one."""

    @property
    def strict(self) -> bool:
        return any(tool.function.strict for tool in self.callable)

    def shown(self) -> list[dict[str, Any]]:
        """As the template takes them."""
        return [tool.model_dump(exclude_unset=True) for tool in self.tools]


def read_tools(body: ChatBody) -> ToolUse | None:
    """None if the answer calls nothing: there are no tools, or `tool_choice` is none."""
    use = _read(body)
    if use is not None and (use.forced or use.strict) and body.ignore_eos:
        raise BadRequest(
            "ignore_eos cannot be combined with calls that have to match their schemas", param="ignore_eos"
        )
    return use


def _read(body: ChatBody) -> ToolUse | None:
    tools, choice = tuple(body.tools or ()), body.tool_choice
    if not tools:
        if choice not in (None, "none", "auto"):
            raise BadRequest("tool_choice asks for a call, but there are no tools", param="tool_choice")
        return None
    _check_names(tools)
    if choice == "none":
        return None
    one_call = body.parallel_tool_calls is False
    if isinstance(choice, NamedTool):
        named = _named(tools, [choice.function.name], "tool_choice.function.name")
        return ToolUse(tools, named, forced=True, one_call=True)
    if isinstance(choice, AllowedChoice):
        names = [one.function.name for one in choice.allowed_tools.tools]
        allowed = _named(tools, names, "tool_choice.allowed_tools.tools")
        return ToolUse(allowed, allowed, forced=choice.allowed_tools.mode == "required", one_call=one_call)
    return ToolUse(tools, tools, forced=choice == "required", one_call=one_call)


def _check_names(tools: tuple[Tool, ...]) -> None:
    known: set[str] = set()
    for place, tool in enumerate(tools):
        if tool.function.name in known:
            message = f"tools[{place}].function.name is {tool.function.name!r}, which another tool has already"
            raise BadRequest(message, param=f"tools[{place}].function.name")
        known.add(tool.function.name)
        kind = (tool.function.parameters or {}).get("type", "object")
        if kind != "object":
            param = f"tools[{place}].function.parameters.type"
            raise BadRequest(f"{param} is {str(kind)[:40]!r}; arguments are always an object", param=param)


def _named(tools: tuple[Tool, ...], names: list[str], param: str) -> tuple[Tool, ...]:
    known = {tool.function.name for tool in tools}
    for name in names:
        if name not in known:
            raise BadRequest(f"{param} names {name[:64]!r}, which is not among the tools", param=param)
    return tuple(tool for tool in tools if tool.function.name in names)
