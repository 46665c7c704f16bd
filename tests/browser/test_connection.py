"""The playground and a server that loads, fails or asks for a key: nothing written is lost, and it says what to do."""

from typing import Any

from tests.browser.conftest import Page
from tests.browser.stand_in import StandIn


def said(text: str, finish: str | None = "stop") -> dict[str, Any]:
    return {"choices": [{"spans": [[text, False]], "drafted": [False], "finish_reason": finish}]}


async def send(page: Page, question: str) -> None:
    await page.type("question", question)
    await page.click("send")
    await page.until("document.getElementById('stop').disabled")


async def connected(page: Page, server: StandIn) -> None:
    await page.open(server.url)
    await page.until(f"document.getElementById('model').textContent === '{server.model}'")


async def focused(page: Page) -> str:
    return str(await page.run("document.activeElement.id"))


async def test_a_server_that_loads_is_noticed_when_it_is_ready(page: Page) -> None:
    async with StandIn("small", [said("yes")]) as server:
        server.ready.clear()
        await page.open(server.url)
        await page.until("document.getElementById('model').textContent.includes('loading')")
        assert "still being loaded" in await page.text("state")
        assert await page.run("document.getElementById('send').disabled")
        await page.type("question", "written early")
        server.ready.set()
        await page.until("!document.getElementById('send').disabled")
        assert await page.text("model") == "small" and "ready" in await page.text("state")
        assert await page.run("document.getElementById('question').value") == "written early"


async def test_a_server_that_comes_back_is_noticed(page: Page) -> None:
    async with StandIn("small", [said("yes")]) as server:
        await connected(page, server)
        server.ready.clear()
        server.status = 503
        await send(page, "hello")
        await page.until("document.getElementById('model').textContent.includes('loading')")
        assert await page.run("document.getElementById('question').value") == "hello"
        server.ready.set()
        server.status = 200
        await page.until("document.getElementById('model').textContent === 'small'")
        await page.click("send")
        await page.until("document.querySelector('.turn.assistant')?.textContent === 'yes'")


async def test_a_question_without_an_answer_is_not_lost(page: Page) -> None:
    async with StandIn("small", [said("yes")]) as server:
        await connected(page, server)
        server.status = 500
        await send(page, "a long and careful question")
        assert "a problem" in await page.text("error")
        assert await page.run("document.getElementById('question').value") == "a long and careful question"
        assert await page.run("document.querySelectorAll('.turn').length") == 0
        server.status = 200
        await page.click("send")
        await page.until("document.getElementById('state').textContent.includes('complete')")
        assert await page.run("document.getElementById('error').hidden")
        assert [turn["content"] for turn in server.asked[-1]["messages"]] == ["a long and careful question"]


async def test_half_an_answer_stays_to_be_read_and_its_question_to_be_asked_again(page: Page) -> None:
    async with StandIn("small", [said("half", None), {"error": {"message": "out of time"}}]) as server:
        await connected(page, server)
        await send(page, "hello")
        assert await page.text("error") == "out of time"
        assert await page.run("document.querySelector('.turn.assistant.cut').textContent") == "half"
        assert await page.run("document.getElementById('question').value") == "hello"
        server.pieces = [said("whole")]
        await page.click("send")
        await page.until("document.getElementById('state').textContent.includes('complete')")
        assert [turn["content"] for turn in server.asked[-1]["messages"]] == ["hello"]


async def test_a_missing_key_leads_to_its_field(page: Page) -> None:
    async with StandIn("small", [said("yes")], key="right") as server:
        await page.open(server.url)
        await page.until("!document.getElementById('error').hidden")
        assert "asks for an API key" in await page.text("error") and "“API key”" in await page.text("error")
        assert await focused(page) == "key"
        assert await page.run("document.getElementById('key').getAttribute('aria-invalid')") == "true"
        await page.type("key", "wrong")
        await send(page, "hello")
        await page.until("document.getElementById('error').textContent.includes('refused')")
        assert await focused(page) == "key"
        assert await page.run("document.getElementById('question').value") == "hello"
        await page.type("key", "right")
        await page.run("document.getElementById('key').dispatchEvent(new Event('change'))")
        await page.until("document.getElementById('model').textContent === 'small'")
        assert await page.run("document.getElementById('error').hidden")
        assert await page.run("document.getElementById('key').getAttribute('aria-invalid')") == "false"
