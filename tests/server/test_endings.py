"""How answers with formats and tools end, streamed by a real process, when its scheduler dies or it drains."""

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.patience import PATIENCE
from tests.server.openai.tool_models import CITY, TEMPLATE, WEATHER
from tests.server.processes import Process, serving, until_draining
from tests.server.responses.schema import check_stream
from tests.server.responses.test_responses import parsed

CHAT, RESPOND = "/v1/chat/completions", "/v1/responses"
ASK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40, "stream": True}
INPUT = {"input": "hi", "max_output_tokens": 40, "stream": True}
SCHEMA = {"type": "object", "properties": {"city": CITY}, "required": ["city"], "additionalProperties": False}
FORMAT = {"name": "place", "schema": SCHEMA, "strict": True}
FLAT = {"type": "function", **WEATHER["function"]}
STREAMS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, ASK | {"tools": [WEATHER]}),
    (CHAT, ASK | {"tools": [WEATHER], "tool_choice": "required"}),
    (CHAT, ASK | {"response_format": {"type": "json_schema", "json_schema": FORMAT}}),
    (RESPOND, INPUT),
    (RESPOND, INPUT | {"tools": [FLAT]}),
    (RESPOND, INPUT | {"text": {"format": {"type": "json_schema", **FORMAT}}}),
]


@pytest.mark.parametrize("ending", ["engine_dead", "draining", "finished"])
async def test_each_stream_ends_once(folder: Path, tmp_path: Path, http: aiohttp.ClientSession, ending: str) -> None:
    """The scheduler is killed; it stands still, so that the drain runs out of time; or it ends what it has begun."""
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    seconds = 0.3 if ending == "draining" else 60
    settings = f"server.chat_template={template}", "server.tool_call_parser=hermes", f"server.drain_seconds={seconds}"
    async with (
        serving(folder, *settings) as server,
        contextlib.AsyncExitStack() as open_ones,
        asyncio.timeout(PATIENCE),
    ):
        answers = [
            await open_ones.enter_async_context(http.post(server.url + path, json=body)) for path, body in STREAMS
        ]
        begun = [(await answer.content.readuntil(b"delta")).decode() for answer in answers]
        await end(server, http, ending)
        texts = [first + (await answer.content.read()).decode() for first, answer in zip(begun, answers, strict=True)]
        if ending == "draining":
            os.kill(server.scheduler, signal.SIGCONT)
        code, _, log = await server.end()
    assert code == (ending == "engine_dead") and "Traceback" not in log
    for (path, _), text in zip(STREAMS, texts, strict=True):
        check = check_chat if path == CHAT else check_response
        check(text, ending)


async def end(server: Process, http: aiohttp.ClientSession, ending: str) -> None:
    if ending == "engine_dead":
        os.kill(server.scheduler, signal.SIGKILL)
        return
    if ending == "draining":
        os.kill(server.scheduler, signal.SIGSTOP)
    server.process.terminate()
    if ending == "finished":
        await until_draining(http, server.url)
        os.kill(server.scheduler, signal.SIGUSR1)  # until here nothing could finish


def check_chat(text: str, ending: str) -> None:
    *said, done = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    chunks = [json.loads(line) for line in said]
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk.get("choices", []) if choice]
    codes = [chunk["error"]["code"] for chunk in chunks if "error" in chunk]
    assert done == "[DONE]"
    if ending == "finished":
        assert codes == [] and [reason for reason in reasons if reason] == ["length"]
    else:
        assert codes == [ending] and chunks[-1]["error"] and not any(reasons)


def check_response(text: str, ending: str) -> None:
    last = check_stream(parsed(text))  # of which exactly one event ends the response, the last one
    if ending == "finished":
        assert (last["status"], last["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert last["error"] is None and last["usage"]["output_tokens"] == INPUT["max_output_tokens"]
    else:
        assert (last["status"], last["error"]["type"]) == ("failed", ending)
        assert last["output"][0]["status"] == "incomplete" and last["usage"] is None
