"""Chat templates: renders the model's Jinja template in a sandbox, with the globals and filters that templates expect.

Called by `tokenizer`. The template belongs to the operator; messages are data to it. The output equals that of
`apply_chat_template` in `transformers` (tests compare them).
"""

import json
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from aerie.contracts.errors import BadRequest, ConfigError
from aerie.server.text.system_turns import SystemTurns

_OURS = {"messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize"}
"""Names that the server or other renderers define; a request must not change them."""
_FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What a template may raise on messages that it does not take."""


class ChatTemplate:
    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            parsed = environment.parse(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template is not valid Jinja: {error}") from None
        self._special_tokens = special_tokens
        self._reserved = _OURS | set(special_tokens) | set(environment.globals)
        self._knows_developer = "developer" in {constant.value for constant in parsed.find_all(nodes.Const)}
        self._names = {name.name for name in parsed.find_all(nodes.Name)}
        roles = ("system", "developer") if self._knows_developer else ("system",)
        self._system_turns = SystemTurns(self._tried, roles)

    def reads(self, variable: str) -> bool:
        return variable in self._names

    def render(
        self, messages: list[dict[str, Any]], variables: dict[str, Any], tools: list[dict[str, Any]] | None = None
    ) -> str:
        """Returns the prompt, ready for the answer. `variables` are passed to the template, which may ignore them. The
        role `developer` becomes `system` if the template does not know it, and leading system turns become one if it
        takes one. Raises BadRequest with the template's reason if it rejects the messages.
        """
        taken = sorted(self._reserved.intersection(variables))
        if taken:
            raise BadRequest(
                f"chat_template_kwargs names {', '.join(taken)}, which the server sets itself; leave it out",
                param="chat_template_kwargs",
            )
        if not self._knows_developer:
            messages = [one | {"role": "system"} if one.get("role") == "developer" else one for one in messages]
        try:
            return self._rendered(self._system_turns.arranged(messages), variables, tools)
        except RecursionError:
            raise BadRequest("the messages are nested too deeply for the chat template", param="messages") from None
        except _FAULTS as error:
            # The template is the model author's program; the caller has to fix messages on which it raises.
            raise BadRequest(f"the chat template refused the messages: {str(error)[:300]}", param="messages") from None

    def _rendered(
        self, messages: list[dict[str, Any]], variables: dict[str, Any], tools: list[dict[str, Any]] | None
    ) -> str:
        values = {"tools": tools, "documents": None, "add_generation_prompt": True, **self._special_tokens}
        return self._template.render({**variables, **values, "messages": messages})

    def _tried(self, messages: list[dict[str, Any]]) -> str | None:
        try:
            return self._rendered(messages, {}, None)
        except _FAULTS:
            return None


class _Generation(Extension):
    """`{% generation %}` marks the assistant's tokens for training; in a prompt it renders its content."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own way

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replaces Jinja's filter, which escapes HTML: chat templates expect plain JSON."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
