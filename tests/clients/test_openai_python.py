"""The official Python client, unchanged: structured answers, streams, and tool loops of three turns that end."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.clients.conftest import LOOK_PARAMETERS, MODEL, MOST, QUESTION, Answer

LOOK: Any = {"type": "function", "function": {"name": "look", "parameters": LOOK_PARAMETERS, "strict": True}}
FLAT: Any = {"type": "function", **LOOK["function"]}
CHOICES: list[Any] = ["required", {"type": "function", "function": {"name": "look"}}, "none"]


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def user(text: str = QUESTION) -> list[Any]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("temperature", [0, 1, 2])
def test_a_chat_is_parsed(client: OpenAI, temperature: float) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=user(), response_format=Answer, temperature=temperature, max_tokens=MOST
    )
    assert isinstance(answer.choices[0].message.parsed, Answer)


def test_a_chat_is_streamed_and_parsed(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=user(), response_format=Answer, max_tokens=MOST, seed=3
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert isinstance(final.choices[0].message.parsed, Answer)


def test_a_tool_call_is_streamed(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL,
        messages=user(),
        tools=[LOOK],
        tool_choice="required",
        max_tokens=MOST,
        parallel_tool_calls=False,  # the demo model would call up to the limit
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    assert final.choices[0].finish_reason == "tool_calls"
    (call, *_) = final.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments["place"] in ("here", "there")  # type: ignore[index]


def test_a_loop_of_three_turns_ends(client: OpenAI) -> None:
    messages, calls = user(), 0
    for choice in CHOICES:
        answer = client.chat.completions.create(
            model=MODEL, messages=messages, tools=[LOOK], tool_choice=choice, max_tokens=MOST, parallel_tool_calls=False
        )
        message = answer.choices[0].message
        messages.append(message)
        for call in message.tool_calls or []:
            assert json.loads(call.function.arguments)["place"] in ("here", "there")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "blue"})
            calls += 1
    assert calls == 2
    assert not message.tool_calls and message.content, "the last turn is text"


def test_a_response_is_created(client: OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input=QUESTION, instructions="Be brief", max_output_tokens=24)
    assert answer.output_text and answer.usage.output_tokens <= 24
    assert (answer.status == "incomplete") == (answer.incomplete_details is not None)


def test_a_response_is_streamed(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input=QUESTION, text_format=Answer, max_output_tokens=MOST) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert isinstance(final.output_parsed, Answer)


@pytest.mark.parametrize("temperature", [0, 1, 2])
def test_a_response_is_parsed(client: OpenAI, temperature: float) -> None:
    answer = client.responses.parse(
        model=MODEL, input=QUESTION, text_format=Answer, temperature=temperature, max_output_tokens=MOST
    )
    assert isinstance(answer.output_parsed, Answer)


def test_a_loop_of_three_responses_ends(client: OpenAI) -> None:
    items: list[Any] = user()
    calls = 0
    for choice in ("required", {"type": "function", "name": "look"}, "none"):
        answer = client.responses.create(
            model=MODEL,
            input=items,
            tools=[FLAT],
            tool_choice=choice,  # type: ignore[arg-type]
            max_output_tokens=MOST,
            parallel_tool_calls=False,
        )
        items += answer.output
        for item in answer.output:
            if item.type == "function_call":
                assert json.loads(item.arguments)["place"] in ("here", "there")
                items.append({"type": "function_call_output", "call_id": item.call_id, "output": "blue"})
                calls += 1
    assert calls == 2
    assert [item.type for item in answer.output] == ["message"] and answer.output_text


def test_a_call_is_streamed_as_items(client: OpenAI) -> None:
    with client.responses.stream(
        model=MODEL,
        input=QUESTION,
        tools=[FLAT],
        tool_choice="required",
        max_output_tokens=MOST,
        parallel_tool_calls=False,
    ) as stream:
        types = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.function_call_arguments.delta" in types
    assert final.output[0].type == "function_call" and json.loads(final.output[0].arguments)
