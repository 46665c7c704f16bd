"""The tools of a chat as pydantic models, in OpenAI's shapes."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from aerie.server.openai.body import Body, Few, Variables, either

MAX_TOOLS = 128
NAME = r"^[a-zA-Z0-9_.-]{1,64}$"
"""Of a function."""


class Function(Body):
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    parameters: Variables | None = None
    strict: bool | None = None

    @property
    def schema_(self) -> dict[str, Any]:
        """Of its arguments, which are an object."""
        return {"type": "object", **(self.parameters or {"properties": {}, "additionalProperties": False})}


class Tool(Body):
    type: Literal["function"]
    function: Function


class FunctionName(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[Few[NamedTool], Field(min_length=1)]


class AllowedChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _kind_of_choice(value: Any) -> str | None:
    if isinstance(value, str):
        return "a text"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if kind in ("function", "allowed_tools") else None


class MadeFunction(Body):
    name: str
    arguments: str | Variables = ""


class MadeCall(Body):
    """A call that the model made in an earlier turn."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: MadeFunction

    def as_data(self) -> dict[str, Any]:
        """Arguments that are not a JSON object stay the text that the model wrote."""
        arguments: Any = self.function.arguments
        if isinstance(arguments, str):
            try:
                read = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                read = None
            arguments = read if isinstance(read, dict) else arguments
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id or "", "type": self.type, "function": function}


Tools = Annotated[Few[Tool], Field(max_length=MAX_TOOLS)]
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("a text")]
    | Annotated[NamedTool, Tag("function")]
    | Annotated[AllowedChoice, Tag("allowed_tools")],
    either(_kind_of_choice, "none, auto, required, or an object of the type function or allowed_tools"),
]
