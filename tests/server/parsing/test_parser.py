"""Dialogues of every family, however their text is cut: the same regions, and no text is lost."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_parsing import parse_response

from aerie.server.parsing.families import choose_family, reasoning_families, tool_families
from aerie.server.parsing.parser import Markup, RegionParser
from aerie.server.parsing.regions import CallArguments, CallOpened, Event, Message, message_of
from tests.server.parsing.feeding import events_of

DIALOGUES = yaml.safe_load(Path(__file__).with_name("dialogues.yaml").read_text(encoding="utf-8"))
NAMES = [one["name"] for one in DIALOGUES]


def parameters(**kinds: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": kind} for name, kind in kinds.items()}}


SCHEMAS = {
    "weather": parameters(city="string", days="integer"),
    "write": parameters(path="string", text="string"),
    "plan": parameters(steps="array", options="object", ratio="number", sure="boolean", note=["string", "null"]),
    "time": parameters(),
}


def markup(dialogue: dict[str, Any], **more: Any) -> Markup:
    return Markup(
        reasoning=choose_family(dialogue.get("reasoning", "none"), reasoning_families(), None, setting="r"),
        tools=choose_family(dialogue.get("tools", "none"), tool_families(), None, setting="t"),
        begins_inside=dialogue.get("inside", False),
        schemas=SCHEMAS,
        **more,
    )


def parse(markup: Markup, *pieces: str) -> tuple[list[Event], RegionParser]:
    parser = RegionParser(markup, new_id=lambda index: f"call {index}")
    return events_of(parser, *pieces), parser


def said(message: Message) -> dict[str, Any]:
    calls = [[one.name, one.arguments, *([] if one.complete else ["cut"])] for one in message.calls]
    return {"reasoned": message.reasoning, "content": message.content, "calls": calls}


def expected(dialogue: dict[str, Any]) -> dict[str, Any]:
    return {
        "reasoned": dialogue.get("reasoned", ""),
        "content": dialogue.get("content", ""),
        "calls": dialogue.get("calls", []),
    }


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=NAMES)
def test_a_dialogue_cut_anywhere(dialogue: dict[str, Any]) -> None:
    text = dialogue["text"]
    whole, parser = parse(markup(dialogue), text)
    assert said(message_of(whole)) == expected(dialogue)
    assert parser.failures == dialogue.get("failures", 0)
    assert parse(markup(dialogue), *text)[0] == whole
    for place in range(len(text)):
        assert parse(markup(dialogue), text[:place], text[place:])[0] == whole


@given(data=st.data())
@settings(max_examples=300)
def test_any_text_cut_anywhere_is_kept(data: st.DataObject) -> None:
    """Texts made of pieces of the dialogues, markers and noise."""
    dialogue = data.draw(st.sampled_from(DIALOGUES))
    words = [
        dialogue["text"],
        *dialogue["text"].split(),
        "<think>",
        "</think>",
        " ",
        "\n",
        "{",
        "}",
        '"',
        "x",
        "(",
        ",",
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=12)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole, parser = parse(markup(dialogue), text)
    assert parse(markup(dialogue), *pieces)[0] == whole
    opened: set[int] = set()
    for event in whole:
        if isinstance(event, CallOpened):
            opened.add(event.index)
            assert event.index == len(opened) - 1 and event.name
        elif isinstance(event, CallArguments):
            assert event.index in opened
    message = message_of(whole)
    assert parser.calls == len(message.calls)
    if not message.calls and "think>" not in text and not dialogue.get("inside"):
        assert message.content == text


@pytest.mark.parametrize("dialogue", [one for one in DIALOGUES if len(one.get("calls", [])) > 1])
def test_one_call_ends_the_answer(dialogue: dict[str, Any]) -> None:
    events, parser = parse(markup(dialogue, one_call=True), *dialogue["text"])
    assert said(message_of(events))["calls"] == expected(dialogue)["calls"][:1]
    assert parser.ended


WELL_FORMED = [one for one in DIALOGUES if one.get("by_transformers")]


@pytest.mark.parametrize("dialogue", WELL_FORMED, ids=[one["name"] for one in WELL_FORMED])
def test_calls_are_those_that_transformers_parses(dialogue: dict[str, Any]) -> None:
    xml = dialogue["tools"] == "qwen3_coder"
    calls = {"open": "<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json"}
    if xml:
        pattern = r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"
        calls |= {"content": "xml-inline", "content_args": {"tag_pattern": pattern}}
        calls |= {"transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}}
        del calls["open"], calls["close"]
        calls |= {
            "open_pattern": r"(<tool_call>\s*)?<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>(\s*</tool_call>)?",
        }
    else:
        calls |= {"transform": {"type": "function", "function": "{content}"}}
    thinking = {"open": "<think>", "close": "</think>", "content": "text"}
    spec = {"start_anchor": "\x00", "fields": {"thinking": thinking, "tool_calls": calls}}
    tools = [{"function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
    theirs = parse_response(dialogue["text"], spec, prefix="", tools=tools)["tool_calls"]
    ours = message_of(parse(markup(dialogue), dialogue["text"])[0]).calls
    assert [(one.name, json.loads(one.arguments)) for one in ours] == [
        (one["function"]["name"], one["function"]["arguments"]) for one in theirs
    ]
