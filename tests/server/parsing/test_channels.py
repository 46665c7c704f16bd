"""Answers in channels, as gpt-oss writes them: the same regions however they are cut, and no text is lost."""

import json
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from aerie.contracts.grammar import Grammar, vocabulary_of
from aerie.server.parsing.channel_grammar import answer_rule, channel_grammar
from aerie.server.parsing.channels import MAX_HEADER, ChannelParser
from aerie.server.parsing.envelope import CallShape
from aerie.server.parsing.families import channel_families
from aerie.server.parsing.regions import Event, message_of
from aerie.server.text.tokenizer import Tokenizer
from tests.server.parsing.feeding import events_of

(FAMILY,) = channel_families()
THOUGHT = "<|channel|>analysis<|message|>User asks.\nI look.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}'
DIALOGUES: dict[str, tuple[str, tuple[str, str, list[Any]]]] = {
    "answer": ("<|channel|>final<|message|>Hi.", ("", "Hi.", [])),
    "reasoned": (f"{THOUGHT}<|channel|>final<|message|>Hi.<|return|>", ("User asks.\nI look.", "Hi.", [])),
    "call": (f"{THOUGHT}{CALL}<|call|>", ("User asks.\nI look.", "", [("weather", '{"city": "Oslo"}', True)])),
    "call whose end is a stop id": (CALL, ("", "", [("weather", '{"city": "Oslo"}', True)])),
    "call that is cut": (CALL[:-4], ("", "", [("weather", '{"city": "Os', False)])),
    "recipient before the channel": (
        " to=functions.time<|channel|>commentary json<|message|>{}<|call|>",
        ("", "", [("time", "{}", True)]),
    ),
    "call without arguments": (CALL.partition("{")[0] + "<|call|>", ("", "", [("weather", "{}", True)])),
    "words before a call": (
        f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{CALL}<|call|>",
        ("", "I look.", [("weather", '{"city": "Oslo"}', True)]),
    ),
    "two messages": (
        "<|channel|>commentary<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Two.",
        ("", "One.\nTwo.", []),
    ),
    "two thoughts": (THOUGHT + THOUGHT, ("User asks.\nI look.\nUser asks.\nI look.", "", [])),
    "a tool of nobody": ("<|channel|>commentary to=python<|message|>1 + 1<|call|>", ("", "1 + 1", [])),
    "a call of nothing": ("<|channel|>commentary to=functions. json<|message|>{}", ("", "{}", [])),
    "no header": ("Just words.", ("", "Just words.", [])),
    "no header, long": ("words " * MAX_HEADER, ("", "words " * MAX_HEADER, [])),
    "a header without a text": ("<|channel|>fin", ("", "", [])),
    "text behind the end": ("<|channel|>final<|message|>Hi.<|end|> and more", ("", "Hi. and more", [])),
    "a marker that is none": ("<|channel|>final<|message|>a <| b <|en d", ("", "a <| b <|en d", [])),
    "nothing": ("", ("", "", [])),
}


def parse(*pieces: str, one_call: bool = False) -> list[Event]:
    return events_of(ChannelParser(FAMILY, one_call=one_call, new_id=str), *pieces)


@pytest.mark.parametrize("name", DIALOGUES)
def test_a_dialogue_cut_anywhere(name: str) -> None:
    text, wanted = DIALOGUES[name]
    whole = parse(text)
    message = message_of(whole)
    calls = [(call.name, call.arguments, call.complete) for call in message.calls]
    assert (message.reasoning, message.content, calls) == wanted
    assert parse(*text) == whole
    for place in range(min(len(text), 400)):
        assert parse(text[:place], text[place:]) == whole


def test_it_ends_behind_the_first_call() -> None:
    parser = ChannelParser(FAMILY, one_call=True, new_id=str)
    parser.feed(CALL)
    assert not parser.ended
    parser.feed("<|call|>")
    assert parser.ended and parser.calls == 1


def test_it_knows_whether_it_reasons() -> None:
    parser = ChannelParser(FAMILY)
    seen = []
    for piece in ("<|channel|>", "analysis", "<|message|>", "Hm", ".", "<|end|>", "<|start|>", "assistant"):
        parser.feed(piece)
        seen.append(parser.reasoning)
    assert seen == [False, False, True, True, True, False, False, False]


SHAPE = CallShape(
    "weather",
    {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
    | {"additionalProperties": False},
)


@pytest.mark.parametrize("forced", [True, False])
def test_its_grammar_takes_what_models_write(channels_folder: Path, forced: bool) -> None:
    tokenizer = Tokenizer(channels_folder)
    text = channel_grammar(
        FAMILY,
        [SHAPE],
        tokenizer.token_of,
        forced=forced,
        answer=answer_rule(Grammar(kind="choice", text='["yes", "no"]')),
    )
    vocabulary = LLTokenizer(vocabulary_of(tokenizer.as_json()), eos_token=[1])

    def takes(said: str) -> bool:
        matcher = LLMatcher(vocabulary, json.dumps({"grammars": [{"lark_grammar": text}]}), log_level=0)
        ids = tokenizer.ids(said, add_special_tokens=False)
        assert not matcher.is_error(), matcher.get_error()
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    final = "<|channel|>final<|message|>no"
    assert takes(CALL) and takes(THOUGHT + CALL) and takes(THOUGHT + THOUGHT + CALL)
    assert not takes(CALL.replace("Oslo", "Bonn")) and not takes(CALL.replace("weather", "time")) and not takes(THOUGHT)
    assert (takes(final), takes(THOUGHT + final)) == (not forced, not forced)
    assert not takes(final + "body")


@pytest.mark.parametrize("kind", ["regex", "lark"])
def test_what_has_no_place_in_channels_is_named(kind: str) -> None:
    with pytest.raises(ValueError, match="in channels, among which only a JSON schema or choices"):
        answer_rule(Grammar(kind=kind, text="start: /a+/"))
