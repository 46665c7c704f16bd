"""A model that writes channels, through the real server: reasoning, calls and answers of both dialects."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest

from tests.server.conftest import Live
from tests.server.openai.test_tools import ASK, TOOLS, serving
from tests.server.openai.tool_models import SCHEMAS, TEMPLATE, any_allowed
from tests.server.responses.schema import check_stream
from tests.server.responses.test_responses import events_of

HARMONY = TEMPLATE + "{# <|channel|> <|message|> functions. #}"
CALL = '<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{"zone": "CET", "exact": true}<|call|>'
SAID = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{CALL}"


@contextlib.asynccontextmanager
async def speaking(channels_folder: Path, tmp_path: Path, script: Any) -> AsyncIterator[Live]:
    async with serving(channels_folder, tmp_path, script, HARMONY) as live:
        assert live.service.families.channels is not None
        yield live


async def test_a_chat_gets_reasoning_and_calls_apart(channels_folder: Path, tmp_path: Path) -> None:
    async with speaking(channels_folder, tmp_path, SAID) as live:
        answer = (await live.client().chat.completions.create(model="demo", messages=ASK, tools=TOOLS)).choices[0]
        assert (answer.message.content, answer.finish_reason) == (None, "tool_calls")
        assert answer.message.model_extra["reasoning"] == "Hm."
        (call,) = answer.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_time", {"zone": "CET", "exact": True})


async def test_a_stream_of_responses_has_the_same_items(
    channels_folder: Path, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    async with speaking(channels_folder, tmp_path, SAID) as live:
        last = check_stream(await events_of(http, live, tools=tools))
    assert [item["type"] for item in last["output"]] == ["reasoning", "function_call"]
    assert last["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.parametrize("wanted", ["call", "schema"])
async def test_what_is_asked_for_is_held_in_its_channel(channels_folder: Path, tmp_path: Path, wanted: str) -> None:
    schema = SCHEMAS["get_weather"]
    format = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema}}
    fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required"}
    async with speaking(channels_folder, tmp_path, any_allowed) as live:
        whole = 0
        for _ in range(6):
            answer = await live.client().chat.completions.create(
                model="demo",
                messages=ASK,
                max_tokens=300,
                **(fields if wanted == "call" else {"response_format": format}),
            )
            said = answer.choices[0]
            if said.finish_reason == "length":
                continue
            whole += 1
            if wanted == "call":
                (call,) = said.message.tool_calls
                jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
            else:
                jsonschema.validate(json.loads(said.message.content), schema)
        assert whole >= 2


async def test_a_grammar_of_another_kind_is_refused_by_name(
    channels_folder: Path, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    async with speaking(channels_folder, tmp_path, "x") as live:
        async with http.post(f"{live.url}/v1/chat/completions", json={"messages": ASK, "guided_regex": "a+"}) as answer:
            error = (await answer.json())["error"]
        assert (answer.status, error["param"]) == (400, "guided_regex") and "channels" in error["message"]


async def test_the_template_gets_earlier_thoughts(channels_folder: Path, tmp_path: Path) -> None:
    showing = HARMONY + "{% for m in messages if m.thinking %}{{ m.thinking }}{% endfor %}"
    turns = [*ASK, {"role": "assistant", "content": "Cold.", "reasoning_content": "Hm, Oslo."}, *ASK]
    async with serving(channels_folder, tmp_path, "x", showing) as live:
        await live.client().chat.completions.create(model="demo", messages=turns)
        assert live.tokenizer.decode(live.fake.seen[0].prompt).endswith("Hm, Oslo.")
