"""Grammars of calls: they take what the family's models write, and nothing that its parser or the schema refuses."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer

from aerie.contracts.grammar import Grammar, vocabulary_of, written
from aerie.server.parsing.envelope import CallShape, envelope
from aerie.server.parsing.families import tool_families
from aerie.server.parsing.parser import Markup, RegionParser
from aerie.server.parsing.regions import message_of
from aerie.server.text.tokenizer import Tokenizer as Served

FAMILIES = {one.name: one for one in tool_families()}
DEFINED = {"$defs": {"size": {"enum": ["S", "M"]}}}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "size": {"$ref": "#/$defs/size"},
        "sure": {"type": ["boolean", "null"]},
    },
    "required": ["city"],
    "additionalProperties": False,
    **DEFINED,
}
SHAPES = [CallShape("weather", SCHEMA), CallShape("time", {"type": "object", "properties": {}})]

XML = "<tool_call>\n<function=weather>\n<parameter=city>\n{}\n</parameter>\n{}</function>\n</tool_call>"
TAKEN = {
    "hermes": ['<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'],
    "qwen3_coder": [
        XML.format("if a < b:\n  c", ""),
        XML.format("x", "<parameter=days>\n2\n</parameter>\n<parameter=size>\nM\n</parameter>\n"),
    ],
    "llama3_json": ['{"name": "weather", "parameters": {"city": "Oslo"}}; {"name": "time", "parameters": {}}'],
    "pythonic": ['[weather(city="Oslo", size="S", sure=null), time()]', '[weather(city="x", days=2)]'],
    "mistral": ['[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "time", "arguments": {}}]'],
    "mistral_named": ['[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}'],
}
REFUSED = {
    "hermes": ['<tool_call>\n{"name": "weather", "arguments": {"city": 3', "Hello", '<tool_call>\n{"name": "other"'],
    "qwen3_coder": [XML.format("a </parameter> b", ""), XML.format("x", "<parameter=days>\nx"), "Hello"],
    "llama3_json": ['{"name": "weather", "parameters": {"days"', "Hello"],
    "pythonic": ["[weather()]", "[weather(days=2", "Hello"],
    "mistral": ['[TOOL_CALLS] [{"name": "x"', "Hello"],
    "mistral_named": ['[TOOL_CALLS]weather[ARGS]{"days"', "Hello"],
}


def matcher(tokenizer: Tokenizer, text: str) -> LLMatcher:
    vocabulary = LLTokenizer(vocabulary_of(tokenizer.to_str()), eos_token=[1])
    made = LLMatcher(vocabulary, written(Grammar(kind="lark", text=text)), log_level=0)
    assert not made.is_error(), made.get_error()
    return made


def accepts(tokenizer: Tokenizer, grammar: str, text: str) -> bool:
    """Whether the whole text is a sentence of the grammar."""
    made, ids = matcher(tokenizer, grammar), tokenizer.encode(text, add_special_tokens=False).ids
    return bool(made.try_consume_tokens(ids) == len(ids) and made.is_accepting())


@pytest.fixture(params=[False, True], ids=["markers as text", "markers as tokens"])
def fast(tokenizer: Served, request: pytest.FixtureRequest) -> Tokenizer:
    copy = Tokenizer.from_str(tokenizer.as_json())
    if request.param:
        markers = {marker for family in FAMILIES.values() for marker in family.markers if "function" not in marker}
        copy.add_tokens([AddedToken(marker, normalized=False) for marker in sorted(markers) if "param" not in marker])
    return copy


@pytest.mark.parametrize("name", FAMILIES)
def test_a_forced_answer_is_calls_and_nothing_else(fast: Tokenizer, name: str) -> None:
    grammar = envelope(FAMILIES[name], SHAPES, fast.token_to_id, forced=True, one_call=False)
    for text in TAKEN[name]:
        assert accepts(fast, grammar, text), text
        schemas = {shape.name: shape.schema for shape in SHAPES}
        parser = RegionParser(Markup(tools=FAMILIES[name], schemas=schemas))
        message = message_of([*parser.feed(text), *parser.finish()])
        assert message.content == "" and message.calls and not parser.failures
        assert all(isinstance(json.loads(call.arguments), dict) for call in message.calls)
    for text in REFUSED[name]:
        assert not accepts(fast, grammar, text), text


@pytest.mark.parametrize("name", FAMILIES)
def test_a_free_answer_is_text_or_valid_calls(fast: Tokenizer, name: str) -> None:
    grammar = envelope(FAMILIES[name], SHAPES, fast.token_to_id, forced=False, one_call=False)
    assert accepts(fast, grammar, "Hello there.") and accepts(fast, grammar, "")
    assert accepts(fast, grammar, TAKEN[name][0])
    assert not accepts(fast, grammar, REFUSED[name][0])
    if fast.token_to_id(FAMILIES[name].opens[0]) is not None:
        assert accepts(fast, grammar, "Hm.\n" + TAKEN[name][0] + "Done.")


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "pythonic", "mistral"])
def test_one_call_is_the_most(fast: Tokenizer, name: str) -> None:
    family = FAMILIES[name]
    grammar = envelope(family, SHAPES, fast.token_to_id, forced=True, one_call=True)
    arguments = "" if family.reads == "python" else "{}"
    call = family.begin.replace("$NAME", "time") + arguments + family.end
    assert accepts(fast, grammar, family.before + call + family.after)
    assert not accepts(fast, grammar, family.before + call + family.between + call + family.after)


def test_what_elements_cannot_hold_is_named(tokenizer: Served) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "maxLength": 3}}}
    with pytest.raises(ValueError, match="maxLength of the parameter 'x'"):
        envelope(FAMILIES["qwen3_coder"], [CallShape("f", schema)], tokenizer.token_of, forced=True, one_call=False)
    with pytest.raises(ValueError, match="anyOf"):
        shape = CallShape("f", {"type": "object", "anyOf": []})
        envelope(FAMILIES["pythonic"], [shape], tokenizer.token_of, forced=True, one_call=False)


@pytest.mark.parametrize("opens", ["", "<think>"])
def test_a_grammar_may_stand_behind_reasoning(fast: Tokenizer, opens: str) -> None:
    """Markers are text in one tokenizer and tokens in the other."""
    marker = fast.token_to_id("</tool_call>")
    if marker is not None:
        fast.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    grammar = Grammar(kind="choice", text='["yes"]', behind="</think>", opens=opens)
    vocabulary = LLTokenizer(vocabulary_of(fast.to_str()), eos_token=[1])

    def takes(text: str) -> bool:
        made = LLMatcher(vocabulary, written(grammar, fast.token_to_id("</think>")), log_level=0)
        assert not made.is_error(), made.get_error()
        ids = fast.encode(text, add_special_tokens=False).ids
        return bool(made.try_consume_tokens(ids) == len(ids) and made.is_accepting())

    assert takes(opens + "Hm, no < yes.\n</think>\n\nyes") and takes(opens + "</think>yes")
    assert not takes(opens + "Hm</think>no")
    assert takes("yes") == bool(opens)
