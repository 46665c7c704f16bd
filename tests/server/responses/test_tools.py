"""Reasoning, calls and formats as items: held to their schemas, streamed in order, taken back as input."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest

from aerie.contracts.errors import Overloaded
from tests.server.conftest import text_then_silent
from tests.server.openai.test_tools import serving
from tests.server.openai.tool_models import SCHEMAS, THINKING, TIME, WEATHER, any_allowed, call_text
from tests.server.responses.schema import check_response, check_stream
from tests.server.responses.test_responses import PATH, events_of, parsed

TOOLS = [{"type": "function", **one["function"]} for one in (WEATHER, TIME)]
SAID = f"<think>\nI look.\n</think>\n\nWait.\n{call_text('get_weather', {'city': 'Oslo', 'days': 3})}"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_time"}])
async def test_forced_calls_are_items_that_validate(
    folder: Path, tmp_path: Path, http: aiohttp.ClientSession, choice: Any
) -> None:
    """A format is of no account beside a call that is required: clients send it with every turn of a loop."""
    text = {"format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}}
    async with serving(folder, tmp_path, any_allowed, tool_call_parser="hermes") as live:
        fields = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "text": text}
        last = check_stream(await events_of(http, live, **fields))
        async with http.post(live.url + PATH, json={"input": "hi", **fields}) as answer:
            whole = await answer.json()
    check_response(whole)
    for response in (last, whole):
        assert response["status"] == "completed"
        assert response["tool_choice"] == choice and [tool["name"] for tool in response["tools"]] == list(SCHEMAS)
        (call,) = response["output"]
        assert (call["type"], call["status"]) == ("function_call", "completed")
        jsonschema.validate(json.loads(call["arguments"]), SCHEMAS[call["name"]])
        assert isinstance(choice, str) or call["name"] == "get_time"


async def test_reasoning_text_and_a_call_are_three_items(
    folder: Path, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    parsers = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    said = SAID.removeprefix("<think>\n")  # the template opens the reasoning
    async with serving(folder, tmp_path, said, THINKING, **parsers) as live:
        last = check_stream(await events_of(http, live, tools=TOOLS))
        assert [item["type"] for item in last["output"]] == ["reasoning", "message", "function_call"]
        thought, message, call = last["output"]
        assert thought["content"][0]["text"].strip() == "I look." and thought["summary"] == []
        assert message["content"][0]["text"].strip() == "Wait."
        assert json.loads(call["arguments"]) == {"city": "Oslo", "days": 3}
        reasoned = last["usage"]["output_tokens_details"]["reasoning_tokens"]
        assert 0 < reasoned < last["usage"]["output_tokens"]

        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "cold"}
        history = [{"role": "user", "content": "hi"}, *last["output"], output]
        check_stream(await events_of(http, live, tools=TOOLS, input=history))
        prompt = live.tokenizer.decode(live.fake.seen[-1].prompt, skip_special=False)
        assert "<|assistant|>Wait." in prompt
        assert 'get_weather city="Oslo" days=3' in prompt, "arguments are an object again"
        assert "<|user|>cold<|end|>" in prompt


async def test_a_call_that_the_limit_cuts_is_incomplete(
    folder: Path, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    async with serving(folder, tmp_path, SAID, tool_call_parser="hermes", reasoning_parser="qwen3") as live:
        tokens = len(live.ids(SAID)) - 24
        last = check_stream(await events_of(http, live, tools=TOOLS, max_output_tokens=tokens))
    assert (last["status"], last["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert last["output"][-1]["status"] == "incomplete"
    assert {item["status"] for item in last["output"][:-1]} == {"completed"}


@pytest.mark.parametrize("ending", ["dies", "drains", "is given up"])
async def test_a_stream_that_cannot_go_on_fails_once_inside_a_call(
    folder: Path, tmp_path: Path, http: aiohttp.ClientSession, ending: str
) -> None:
    begun = call_text("get_weather", {"city": "Oslo", "days": 2}).partition('"Oslo"')[0]

    async with serving(folder, tmp_path, text_then_silent(begun)) as live:
        body = {"input": "hi", "tools": TOOLS, "stream": True}
        async with http.post(live.url + PATH, json=body) as answer:
            text = (await answer.content.readuntil(b"function_call_arguments.delta")).decode()
            if ending == "dies":
                await asyncio.to_thread(live.fake.kill)
            elif ending == "drains":
                live.service.engine.fail_all(Overloaded("shutting down", code="draining"))
            else:
                live.service.engine.abort(live.fake.seen[0].id)
            text += (await answer.content.read()).decode()
    last = check_stream(parsed(text))
    assert last["status"] == "failed"
    (call,) = last["output"]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "get_weather", "incomplete")
    assert call["arguments"].startswith('{"city')


async def test_a_format_is_a_grammar(folder: Path, tmp_path: Path, http: aiohttp.ClientSession) -> None:
    schema = SCHEMAS["get_weather"]
    format = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    async with serving(folder, tmp_path, any_allowed) as live:
        last = check_stream(await events_of(http, live, text={"format": format}))
    assert last["text"]["format"] == format | {"description": None}
    jsonschema.validate(json.loads(last["output"][0]["content"][0]["text"]), schema)


async def test_a_tool_s_fault_has_its_place_in_the_request(
    folder: Path, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    async with serving(folder, tmp_path, "x", tool_call_parser="hermes") as live:
        for tools, choice, param in (
            ([{"type": "web_search"}, {"type": "function", "name": "a b"}], "auto", "tools[1].name"),
            ([{"type": "web_search"}, {"type": "function"}], "auto", "tools[1].name"),
            (TOOLS, {"type": "function", "name": "none_such"}, "tool_choice.name"),
            ([{"type": "web_search"}], "required", "tool_choice"),
        ):
            body = {"input": "hi", "tools": tools, "tool_choice": choice}
            async with http.post(live.url + PATH, json=body) as answer:
                error = (await answer.json())["error"]
            assert (answer.status, error["param"]) == (400, param), error
        assert live.fake.seen == []
