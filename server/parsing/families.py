"""Families of models by the markup of their answers: data files in configs/parsers, one for each family.

A family is found by the texts that its chat templates hold, or named by `server.tool_call_parser` and
`server.reasoning_parser`, with the names that vLLM gives its parsers.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar

import yaml

from aerie.contracts.errors import ConfigError
from aerie.contracts.places import shipped
from aerie.contracts.section import Section
from aerie.contracts.server_section import ServerConfig

AUTO, NONE = "auto", "none"
MARKER = re.compile(r"<[^<>\s$]+>|\[/?[A-Z_]+\]")
"""What may be a token in the texts of a markup, in which `$NAME` stands for a tool."""


class Family(Section):
    name: str
    aliases: tuple[str, ...] = ()
    """Other names for it, as other servers have them."""
    signs: tuple[str, ...]
    """Texts that a template of this family holds, all of them. The family with the most of them is taken."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts of its markup that may be tokens."""
        raise NotImplementedError


class ToolFamily(Family):
    kind: Literal["tools"]
    reads: Literal["json", "named", "xml", "python"]
    """How a call is written: see the readers."""
    opens: tuple[str, ...]
    """Markers before a call. None may be the beginning of another."""
    closes: tuple[str, ...] = ()
    """Markers behind a call, which may be missing."""
    separator: str = ""
    """Between calls, if they do not each have their marker."""
    only_first: bool = False
    """A marker counts at the beginning of the answer only, and only before the name of a tool: it is a usual text."""
    inside: tuple[str, ...] = ()
    """Markers that are a part of the call itself, such as the `{` of an object."""
    arguments: tuple[str, ...] = ("arguments", "parameters")
    """Keys of a JSON object that hold the arguments."""
    id_letters: int = 0
    """The length of an id of a call that templates of the family want; 0 takes any."""
    before: str = ""
    """What a constrained answer writes before all calls, `begin` before each, `end` behind it, and `after`."""
    begin: str = ""
    end: str = ""
    between: str = ""
    after: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        texts = (*self.opens, *self.closes, self.before, self.begin, self.end, self.between, self.after)
        return tuple(dict.fromkeys(marker for text in texts for marker in MARKER.findall(text)))


class ReasoningFamily(Family):
    kind: Literal["reasoning"]
    opens: str
    closes: str
    always: bool = False
    """Answers begin inside reasoning, unless the prompt has closed it."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.opens, self.closes)


class ChannelFamily(Family):
    """Models that write reasoning, answer and calls as messages, each with a header: see `channels`."""

    kind: Literal["channels"]
    start: str
    role: str
    """What follows `start` in the model's own messages."""
    channel: str
    constrain: str
    message: str
    """Between a header and its text."""
    ends: tuple[str, ...]
    """Markers behind a message. The first ends one that another follows."""
    reasoning: str
    """The channels of reasoning, of the answer, and of calls."""
    answer: str
    calls: str
    recipient: str
    """Precedes the name of a function in a header."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.start, self.channel, self.constrain, self.message, *self.ends)


_F = TypeVar("_F", bound=Family)


@dataclass(frozen=True, slots=True)
class Families:
    """Those of the served model."""

    tools: ToolFamily | None = None
    reasoning: ReasoningFamily | None = None
    channels: ChannelFamily | None = None
    """In place of both."""

    @property
    def parses_calls(self) -> bool:
        return self.tools is not None or self.channels is not None


def served_families(template: str | None, settings: ServerConfig, tool_template: str | None = None) -> Families:
    """`tool_template` is the template of chats with tools, if they have another. Raises ConfigError if a setting names
    a family that is not known.
    """
    shows_tools = tool_template or template
    channels = channel_families()
    calls = choose_family(
        settings.tool_call_parser, (*tool_families(), *channels), shows_tools, setting="server.tool_call_parser"
    )
    thoughts = choose_family(
        settings.reasoning_parser, (*reasoning_families(), *channels), template, setting="server.reasoning_parser"
    )
    for family in (calls, thoughts):
        if isinstance(family, ChannelFamily):
            return Families(channels=family)
    return Families(
        calls if isinstance(calls, ToolFamily) else None, thoughts if isinstance(thoughts, ReasoningFamily) else None
    )


@cache
def tool_families() -> tuple[ToolFamily, ...]:
    return tuple(ToolFamily.model_validate(data) for data in _files() if data["kind"] == "tools")


@cache
def reasoning_families() -> tuple[ReasoningFamily, ...]:
    return tuple(ReasoningFamily.model_validate(data) for data in _files() if data["kind"] == "reasoning")


@cache
def channel_families() -> tuple[ChannelFamily, ...]:
    return tuple(ChannelFamily.model_validate(data) for data in _files() if data["kind"] == "channels")


def choose_family(name: str, families: Iterable[_F], template: str | None, *, setting: str) -> _F | None:
    """The family of this name, or that of the template if the name is `auto`. Raises ConfigError on another name."""
    families = list(families)
    if name == NONE:
        return None
    if name == AUTO:
        found = [one for one in families if template is not None and all(sign in template for sign in one.signs)]
        return max(found, key=lambda one: (len(one.signs), sum(map(len, one.signs))), default=None)
    for family in families:
        if name in (family.name, *family.aliases):
            return family
    known = ", ".join(sorted(one.name for one in families))
    raise ConfigError(f"{setting} is {name!r}; known are {known}, and auto and none", param=setting)


def _files() -> list[dict[str, object]]:
    folder = shipped() / "configs" / "parsers"
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.yaml"))]
