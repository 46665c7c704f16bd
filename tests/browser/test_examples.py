"""Chips fill the page, message after message; a called tool gets what the user writes."""

import json

import aiohttp

from tests.browser.conftest import Page
from tests.browser.stand_in import StandIn
from tests.browser.test_playground import answered
from tests.browser.test_regions import call, chunk

CALLS = [
    chunk(call(0, name="get_weather", arguments='{"city": '), []),
    chunk(call(0, arguments='"Oslo"}'), []),
    chunk(call(1, name="get_time", arguments="{}"), []),
    chunk({}, [], "tool_calls"),
]
TEXT = [chunk({"content": "Mild."}, [["Mild.", False]], "stop")]
TOOLS = [{"name": "get_weather"}, {"name": "get_time"}]


async def opened(page: Page, server: StandIn) -> None:
    await page.open(server.url)
    await page.until("document.getElementById('model').textContent === 'demo'")
    await page.until("document.getElementById('examples').children.length > 0")


async def send(page: Page, text: str | None = None) -> None:
    if text is not None:
        await page.type("question", text)
    await page.click("send")
    await answered(page)


async def asks_for(page: Page) -> tuple[str, str]:
    shown = await page.run("document.getElementById('question').placeholder")
    assert shown == await page.text("asks-for"), "the label is read to those who see no placeholder"
    return shown, await page.run("document.getElementById('compare').disabled")


async def test_each_call_gets_its_result_before_the_model_goes_on(page: Page) -> None:
    async with StandIn("demo", CALLS) as server:
        await opened(page, server)
        await page.type("tools", json.dumps(TOOLS))
        await send(page, "How is it in Oslo?")
        assert await asks_for(page) == ("What get_weather returns", True)
        await send(page, '{"degrees": 21}')
        assert await asks_for(page) == ("What get_time returns", True)
        assert len(server.asked) == 1, "one result is missing"
        server.pieces = TEXT
        await send(page, "noon")
        assert await asks_for(page) == ("Your message", False)
        assert await page.run("document.querySelectorAll('.turn.tool').length") == 2
        calls = [
            {"id": "call-0", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}},
            {"id": "call-1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}},
        ]
        assert server.asked[1]["messages"] == [
            {"role": "user", "content": "How is it in Oslo?"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call-0", "content": '{"degrees": 21}'},
            {"role": "tool", "tool_call_id": "call-1", "content": "noon"},
        ]
        await send(page, "Thanks.")
        assert [one["role"] for one in server.asked[2]["messages"][4:]] == ["assistant", "user"]


async def test_a_result_that_brought_an_error_can_be_sent_again(page: Page) -> None:
    async with StandIn("demo", CALLS[:2] + CALLS[3:]) as server:
        await opened(page, server)
        await send(page, "How is it in Oslo?")
        server.status = 500
        await send(page, "rain")
        assert await page.run("document.getElementById('question').value") == "rain"
        assert await asks_for(page) == ("What get_weather returns", True)
        server.status, server.pieces = 200, TEXT
        await send(page)
        assert server.asked[1]["messages"] == server.asked[2]["messages"]
        await page.click("clear")
        assert await asks_for(page) == ("Your message", False)


async def test_a_chip_fills_the_page_to_its_example_s_end(page: Page) -> None:
    async with StandIn("demo", TEXT) as server:
        await opened(page, server)
        async with aiohttp.ClientSession() as http, http.get(f"{server.url}/playground/examples.json") as answer:
            examples = await answer.json()
        for place, example in enumerate(examples):
            chip = f"document.getElementById('examples').children[{place}]"
            assert await page.run(f"{chip}.textContent") == example["name"]
            await page.run(f"{chip}.click()")
            before = len(server.asked)
            server.pieces = TEXT
            says, returns = [*example["says"]], [*example.get("returns", ())]
            asked = []
            while text := await page.run("document.getElementById('question').value"):
                calls = "tools" in example and not (asked and asked[-1] in says)
                asked.append(text)
                server.pieces = CALLS[:2] + CALLS[3:] if calls else TEXT
                await send(page)
            script = [text for pair in zip(says, returns, strict=True) for text in pair] if returns else says
            assert asked == script, example["name"]
            body = server.asked[before]
            assert body["messages"] == [{"role": "user", "content": says[0]}], "a chip begins a new conversation"
            assert [tool["function"] for tool in body.get("tools", ())] == example.get("tools", [])
            given = body.get("response_format", {}).get("json_schema", {}).get("schema")
            assert given == example.get("schema")
            assert body["max_tokens"] == example.get("max_tokens", body["max_tokens"])
