"""Regions of an answer as items: however they are cut into steps, the items are the same and every event is valid."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aerie.server.parsing.regions import CallArguments, CallClosed, CallOpened, Content, Event, Reasoning, add
from aerie.server.responses.items import Items
from tests.server.responses.schema import EVENTS, check_items

REGIONS: list[Event] = [
    Reasoning("hm, "),
    Reasoning("well"),
    Content("I look."),
    CallOpened(0, "call_a", "look"),
    CallArguments(0, '{"at"'),
    CallArguments(0, ': "sky"}'),
    CallClosed(0, True),
    CallOpened(1, "call_b", "feel"),
    CallArguments(1, '{"at'),
    CallClosed(1, False),
]


def run(steps: list[list[Event]], *, cut: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    items, events = Items(), []
    for step in steps:
        events += items.take(step, [])
    events += items.end(cut=cut)
    return events, items.output()


def named(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items without their ids, which are drawn."""
    return [{key: value for key, value in item.items() if key != "id"} for item in output]


@given(cuts=st.lists(st.booleans(), min_size=len(REGIONS), max_size=len(REGIONS)), cut=st.booleans())
def test_items_do_not_depend_on_steps(cuts: list[bool], cut: bool) -> None:
    steps: list[list[Event]] = [[]]
    for region, ends in zip(REGIONS, cuts, strict=True):
        add(steps[-1], region)
        if ends:
            steps.append([])
    events, output = run(steps, cut=cut)
    check_items(events, {"status": "completed", "output": output})
    assert {event["type"] for event in events} <= EVENTS.keys()
    assert named(output) == named(run([REGIONS], cut=cut)[1])
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["status"] for item in output] == ["completed"] * 3 + ["incomplete"]
    assert output[2]["arguments"] == '{"at": "sky"}' and output[2]["call_id"] == "call_a"
    assert output[3]["arguments"] == '{"at'


def test_a_call_is_named_before_its_arguments_come() -> None:
    events, _ = run([REGIONS], cut=True)
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [(item["name"], item["call_id"], item["arguments"]) for item in added[2:]] == [
        ("look", "call_a", ""),
        ("feel", "call_b", ""),
    ]


def test_what_is_cut_is_incomplete_and_last() -> None:
    for region in (Reasoning("hm"), Content("well")):
        _, output = run([[Content("a"), Reasoning("b"), region]], cut=True)
        assert [item["status"] for item in output][-1] == "incomplete"
        assert {item["status"] for item in output[:-1]} <= {"completed"}


def test_log_probabilities_go_with_the_message_s_text() -> None:
    items = Items()
    items.take([Reasoning("hm")], [{"token": "hm"}])
    assert items.take([], [{"token": "held"}]) == []
    events = items.take([Content("a")], [{"token": "a"}])
    assert events[-1]["logprobs"] == [{"token": "held"}, {"token": "a"}]
    assert items.take([Content("b")], [{"token": "b"}])[-1]["logprobs"] == [{"token": "b"}]
    items.take([], [{"token": "end"}])
    items.end(cut=False)
    assert [one["token"] for one in items.output()[1]["content"][0]["logprobs"]] == ["held", "a", "b", "end"]
