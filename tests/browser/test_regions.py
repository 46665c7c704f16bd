"""What the page shows beside text, and asks for: reasoning, calls of tools, a schema."""

import json
from typing import Any

from tests.browser.conftest import Page
from tests.browser.stand_in import StandIn
from tests.browser.test_playground import HOSTILE, answered, ask


def chunk(delta: dict[str, Any], spans: list[Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "spans": spans, "drafted": [], "finish_reason": finish}]}


def call(index: int, **function: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "id": f"call-{index}", "function": function}]}


PIECES = [
    chunk({"reasoning": "Hm, "}, [["<think>Hm, ", True]]),
    chunk({"reasoning": HOSTILE}, [[HOSTILE + "</think>Let", False]]),
    chunk({"content": "Let"}, []),
    chunk({"content": " me see."}, [[" me", True], [" see.", False]]),
    chunk({}, [["<tool_", False]]),
    chunk(call(0, name="get_weather", arguments=""), [["call>", False]]),
    chunk(call(0, arguments='{"city": '), []),
    chunk(call(0, arguments='"Oslo"}'), []),
    chunk(call(1, name=HOSTILE, arguments=""), []),
    chunk({}, [], "tool_calls"),
]


async def test_reasoning_folds_and_calls_are_shown(page: Page) -> None:
    async with StandIn("demo", PIECES) as server:
        await page.open(server.url)
        await page.until("document.getElementById('model').textContent === 'demo'")
        await ask(page, "hi")
        await answered(page)
        turn = "document.querySelector('.turn.assistant')"
        assert await page.run(f"{turn}.querySelector('details.reasoning').open") is False
        assert await page.run(f"{turn}.querySelector('details div').textContent") == "Hm, " + HOSTILE
        spans = await page.run(f"[...{turn}.querySelectorAll('span')].map((one) => one.textContent).join('|')")
        assert spans == "Let| me| see."
        calls = await page.run(f"[...{turn}.querySelectorAll('.call')].map((one) => one.textContent).join('|')")
        assert calls == 'get_weather{"city": "Oslo"}|' + HOSTILE
        assert await page.run("window.harmed === undefined")


async def test_a_schema_and_tools_are_sent(page: Page) -> None:
    schema, function = {"type": "object"}, {"name": "f", "parameters": {"type": "object"}}
    async with StandIn("demo", PIECES) as server:
        await page.open(server.url)
        await page.until("document.getElementById('model').textContent === 'demo'")
        await page.run("document.getElementById('form').open = true")
        await page.type("schema", "{")
        await ask(page, "hi")
        await answered(page)
        assert "“JSON schema” is not JSON" in await page.text("error") and not server.asked
        await page.type("schema", json.dumps(schema))
        await page.type("tools", json.dumps([function]))
        await ask(page, "hi")
        await answered(page)
        asked = server.asked[-1]
        assert asked["response_format"]["json_schema"]["schema"] == schema
        assert asked["tools"] == [{"type": "function", "function": function}]
