"""Aerie's plugin of SGLang: lets SGLang's engine hold answers to Aerie's grammars.

SGLang finds `register` by this distribution's entry point and calls it in every process that it starts. `bridge` asks
for the backend `NAME` where the plugin is installed, and sends each grammar as `sent` writes it, in the parameter that
SGLang has for EBNF.
"""

from importlib.metadata import entry_points
from typing import Any

import msgspec

from aerie.contracts.grammar import Grammar

NAME = "aerie"
_GROUP = "sglang.srt.plugins"


def register() -> None:
    from sglang.srt.constrained.base_grammar_backend import register_grammar_backend

    def make(*given: Any) -> Any:
        from aerie.engine.sglang.grammars import AerieGrammars

        return AerieGrammars.of_engine(*given)

    register_grammar_backend(NAME, make)


def installed() -> bool:
    """Whether SGLang's processes find the plugin; not if Aerie runs from its sources and is not installed."""
    return any(point.name == NAME for point in entry_points(group=_GROUP))


def sent(grammar: Grammar) -> str:
    return msgspec.json.encode(grammar).decode()


def received(text: str) -> Grammar:
    return msgspec.json.decode(text, type=Grammar)
