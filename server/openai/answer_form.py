"""The form of a chat's answer: the regions that it may have, and the grammar that it must match.

Made for each chat by `chats`, from its tools and its response format and from the markup of the model's family; read by
`respond` once the prompt is there, since the prompt says whether the answer begins inside reasoning.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import msgspec

from aerie.contracts.errors import BadRequest
from aerie.contracts.grammar import Grammar
from aerie.server.openai.choice import TextRules
from aerie.server.openai.tools import ToolUse
from aerie.server.parsing.channel_grammar import answer_rule, channel_grammar
from aerie.server.parsing.channels import ChannelParser
from aerie.server.parsing.envelope import CallShape, envelope
from aerie.server.parsing.families import ChannelFamily, ReasoningFamily, ToolFamily
from aerie.server.parsing.parser import Markup, RegionParser
from aerie.server.text.grammars import Constraint
from aerie.server.text.tokenizer import Tokenizer

_TAIL = 16
"""Tokens at the end of a prompt that may open or close the reasoning."""

Start = Literal["inside", "before", "behind"]
"""Where an answer begins: inside the reasoning, where reasoning may open, behind it."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    tokenizer: Tokenizer
    tools: ToolFamily | None = None
    reasoning: ReasoningFamily | None = None
    channels: ChannelFamily | None = None
    """Of a model that writes channels; then the other two are None."""
    use: ToolUse | None = None

    def rules(self, rules: TextRules, prompt: list[int]) -> TextRules:
        """The rules of an answer to this prompt, with its parser."""
        if self.channels is not None:
            one_call = self.use is not None and self.use.one_call
            parser = partial(ChannelParser, self.channels, one_call=one_call)
            return replace(rules, kept_ids=self._ids(self.channels.markers), parser=parser)
        tools = self.tools if self.use is not None else None
        if tools is None and self.reasoning is None:
            return rules
        start = self._start(prompt)
        markup = Markup(
            reasoning=self.reasoning if start != "behind" else None,
            begins_inside=start == "inside",
            tools=tools,
            schemas={} if self.use is None else {one.function.name: one.function.schema_ for one in self.use.callable},
            one_call=self.use is not None and self.use.one_call,
        )
        markers = [marker for family in (tools, self.reasoning) if family is not None for marker in family.markers]
        return replace(rules, kept_ids=self._ids(markers), parser=partial(RegionParser, markup))

    def _ids(self, markers: Iterable[str]) -> frozenset[int]:
        """Those of the markers that are tokens."""
        ids = (self.tokenizer.token_of(marker) for marker in markers)
        return frozenset(id for id in ids if id is not None)

    def constraint(self, asked: Constraint | None, answer: dict[str, Any] | None) -> Constraint | None:
        """What the answer must match. `asked` is what the request asks of an answer in text, `answer` its schema: of no
        account where the answer has to be a call, as clients send it with every turn of a loop.

        Raises BadRequest if tools and text cannot both be had.
        """
        if self.channels is not None:
            return self._in_channels(self.channels, asked)
        if self.use is None or self.tools is None or not (self.use.forced or self.use.strict or asked):
            return asked
        if asked is not None and answer is None and not self.use.forced:
            raise BadRequest(
                f"tools and {asked.param} both constrain the answer; with tools, send a JSON schema", param=asked.param
            )
        return Constraint("tools", partial(self._envelope, self.tools, self.use, answer))

    def _in_channels(self, family: ChannelFamily, asked: Constraint | None) -> Constraint | None:
        use = self.use
        forced = use is not None and use.forced
        held = forced or (use is not None and use.strict)
        if asked is None and not held:
            return None

        def make() -> Grammar:
            answer = None if asked is None or forced else answer_rule(asked.make())
            shapes = () if use is None else _shapes(use)
            text = channel_grammar(family, shapes, self.tokenizer.token_of, forced=forced, answer=answer)
            return Grammar(kind="lark", text=text)

        return Constraint("tools" if held or asked is None else asked.param, make)

    def placed(self, constraint: Constraint, prompt: list[int]) -> Constraint:
        """The constraint behind the reasoning, which may come first."""
        start = self._start(prompt)
        if self.reasoning is None or start == "behind":
            return constraint
        optional = start == "before" and self.reasoning.opens.startswith("<")
        opens = self.reasoning.opens if optional else ""
        return replace(constraint, make=partial(_behind, constraint.make, opens, self.reasoning.closes))

    def _start(self, prompt: list[int]) -> Start:
        if self.reasoning is None:
            return "behind"
        tail = self.tokenizer.decode(prompt[-_TAIL:], skip_special=False).rstrip()
        if tail.endswith(self.reasoning.closes):
            return "behind"
        return "inside" if self.reasoning.always or tail.endswith(self.reasoning.opens) else "before"

    def _envelope(self, family: ToolFamily, use: ToolUse, answer: dict[str, Any] | None) -> Grammar:
        text = envelope(
            family, _shapes(use), self.tokenizer.token_of, forced=use.forced, one_call=use.one_call, answer=answer
        )
        return Grammar(kind="lark", text=text)


def _shapes(use: ToolUse) -> list[CallShape]:
    """The tools that may be called. Only forced and strict calls are held to the schema of their function."""
    functions = [one.function for one in use.callable]
    return [CallShape(one.name, one.schema_ if use.forced or one.strict else {"type": "object"}) for one in functions]


def _behind(make: Callable[[], Grammar], opens: str, closes: str) -> Grammar:
    return msgspec.structs.replace(make(), opens=opens, behind=closes)
