"""The grammar of an answer in channels that has to call a function, or to match a schema: any messages of reasoning
first, then the call or the answer. In llguidance's variant of Lark's notation.
"""

import json
from collections.abc import Sequence

from aerie.contracts.grammar import Grammar, choices_of, schema_of, with_options
from aerie.server.parsing.envelope import CallShape, TokenOf, spelled
from aerie.server.parsing.families import ChannelFamily


def channel_grammar(
    family: ChannelFamily, tools: Sequence[CallShape], token_of: TokenOf, *, forced: bool, answer: str | None
) -> str:
    """`forced`: the answer is a call. `answer` is the rule of an answer that calls nothing; None is any text."""

    def written(text: str) -> str:
        return spelled(text, token_of)

    behind = f"{family.ends[0]}{family.start}{family.role}"
    rules = [
        f"thought: {written(family.channel + family.reasoning + family.message)} TEXT {written(behind)}",
        "TEXT: /(.|\\n)*/",
    ]
    ways = []
    for place, tool in enumerate(tools):
        to = f"{family.calls} to={family.recipient}{tool.name}"
        header = f"{family.channel}{to} {family.constrain}json{family.message}"
        rules.append(f"call_{place}: {written(header)} %json {json.dumps(with_options(tool.schema))}")
        ways.append(f"call_{place}")
    if not forced:
        rules.append(f"said: {written(family.channel + family.answer + family.message)} {answer or 'TEXT'}")
        ways.append("said")
    return "\n".join([f"start: thought* ({' | '.join(ways)})", *rules]) + "\n"


def answer_rule(grammar: Grammar) -> str:
    """The rule of an answer that matches a grammar. Raises ValueError for one that has no place among others."""
    if grammar.kind in ("json_schema", "json_object"):
        return f"%json {json.dumps(schema_of(grammar))}"
    if grammar.kind == "choice":
        return f"({choices_of(grammar)})"
    raise ValueError("this model writes its answers in channels, among which only a JSON schema or choices can be held")
