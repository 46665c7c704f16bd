"""The playground in a real browser: it streams, compares, draws, says what is wrong, and runs nothing models say."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.browser.conftest import Page
from tests.browser.stand_in import StandIn
from tests.e2e.conftest import Server
from tests.patience import TRIES

QUESTION = "Count from 20 to 60 in steps of 2."
HOSTILE = '<img src=x onerror="window.harmed=1"><script>window.harmed=1</script><svg onload="window.harmed=1">'


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("server.api_key=secret-word", "spec.planner=fixed") as running:  # which drafts in every answer
        yield running


async def connected(page: Page, server: Server) -> None:
    await page.open(server.url)
    await page.until("!document.getElementById('key-field').hidden")
    await page.type("key", "secret-word")
    await page.run("document.getElementById('key').dispatchEvent(new Event('change'))")
    await page.until("document.getElementById('model').textContent === 'aerie-demo'")


async def ask(page: Page, question: str = QUESTION, button: str = "send") -> None:
    await page.type("question", question)
    await page.click(button)  # the page is busy once this returns; a quick answer may be there by the next look


async def ramble(page: Page) -> None:
    """So hot, the model hardly ever comes to an end."""
    await page.run("document.getElementById('temperature').value = '1.5'")


async def answered(page: Page) -> None:
    await page.until("document.getElementById('stop').disabled")


async def test_it_streams_colors_and_draws(page: Page, server: Server, tmp_path: Path) -> None:
    await connected(page, server)
    await page.type("max-tokens", "40")
    await ask(page)
    await page.until("document.querySelectorAll('.turn.assistant span').length > 2")
    await answered(page)
    assert await page.run("document.querySelectorAll('.turn.assistant .drafted').length") > 0
    assert await page.run("document.querySelectorAll('.turn.assistant span:not(.drafted)').length") > 0
    assert await page.run("document.querySelectorAll('#tree svg rect').length") >= 2
    assert "accepted" in await page.run("document.querySelector('#tree svg').getAttribute('aria-label')")
    assert float(await page.text("acceptance")) >= 1 and float(await page.text("rate")) > 0
    assert all("401" in line for line in page.console), "nothing but the first attempt without a key"


async def test_speculation_can_be_switched_off(page: Page, server: Server) -> None:
    await connected(page, server)
    await page.type("max-tokens", "16")
    await page.click("speculation")
    await ask(page)
    await answered(page)
    assert await page.run("document.querySelectorAll('.turn.assistant span').length") > 0
    assert await page.run("document.querySelectorAll('.turn.assistant .drafted').length") == 0
    assert await page.run("document.querySelector('#tree svg')") is None


async def test_on_and_off_give_the_same_text(page: Page, server: Server) -> None:
    await connected(page, server)
    await page.type("max-tokens", "24")
    await page.run("document.getElementById('temperature').value = '0.8'")
    await ask(page, button="compare")
    await answered(page)
    on, off = await page.text("on-text"), await page.text("off-text")
    assert on and on == off
    assert "The same text" in await page.text("verdict")
    assert "they stand below" in await page.text("state"), "nobody waits for an answer that has come"
    assert (await page.text("on-time")).endswith(" s") and (await page.text("off-time")).endswith(" s")


async def test_an_answer_that_was_cut_is_not_called_complete(page: Page, server: Server) -> None:
    await connected(page, server)
    await page.type("max-tokens", "5")
    await ask(page)
    await answered(page)
    state = await page.text("state")
    assert "cut at 5 tokens" in state and "Max tokens" in state and "complete" not in state
    assert await page.run("document.querySelectorAll('.turn.assistant.cut').length") == 1
    await ask(page, button="compare")
    await answered(page)
    state = await page.text("state")
    assert "cut at the limit" in state and "complete" not in state
    assert "cut there" in await page.text("on-detail") and "cut there" in await page.text("off-detail")


async def test_errors_are_said(page: Page, server: Server) -> None:
    await connected(page, server)
    await ask(page, "word " * 5000)
    await answered(page)
    assert "maximum context length is 2048" in await page.text("error")
    await page.type("key", "wrong")
    await ask(page, "hello")
    await answered(page)
    assert "key" in (await page.text("error")).lower()


async def test_an_answer_can_be_stopped(page: Page, server: Server) -> None:
    await connected(page, server)
    await page.type("max-tokens", "1500")
    await ramble(page)
    await ask(page, "Count from 1 to 199 in steps of 1, one per line.")
    await page.until("document.querySelectorAll('.turn.assistant span').length > 1")
    await page.click("stop")
    await answered(page)
    assert await page.run("document.getElementById('error').hidden")


async def test_a_server_that_dies_is_said(page: Page) -> None:
    for _ in range(TRIES):  # an answer may be whole before anybody sees its first piece
        with Server() as server:
            await page.open(server.url)
            await page.until("document.getElementById('model').textContent === 'aerie-demo'")
            await page.type("max-tokens", "1800")
            await ramble(page)
            await ask(page, "Count from 1 to 199 in steps of 1, one per line.")
            await page.until("document.querySelectorAll('.turn.assistant span').length > 0")
            server.process.kill()
            await answered(page)
            if "complete" in await page.text("state"):
                continue
            assert "cut off" in await page.text("error")
            await page.type("question", QUESTION)
            await page.click("send")
            await page.until("document.getElementById('error').textContent.includes('cannot be reached')")
            return
    raise AssertionError("no answer was cut off")


@pytest.mark.parametrize(("width", "dark"), [(360, False), (360, True), (1280, False), (1280, True)])
async def test_it_fits_a_phone_and_the_dark(page: Page, server: Server, tmp_path: Path, width: int, dark: bool) -> None:
    await page.look(width, 800, dark=dark)
    await connected(page, server)
    await page.type("max-tokens", "12")
    await ask(page)
    await answered(page)
    assert await page.run("document.documentElement.scrollWidth <= window.innerWidth"), "it scrolls sideways"
    background = await page.run("getComputedStyle(document.body).backgroundColor")
    light = sum(int(part) for part in background[4:-1].split(",")) > 380
    assert light is not dark
    unlabelled = "[...document.querySelectorAll('input, textarea')].filter((e) => !e.labels.length).length"
    assert await page.run(unlabelled) == 0


@pytest.fixture
async def hostile() -> AsyncIterator[str]:
    """The real page over a model that says markup, in text, in its tree and in its errors."""
    tree = {"token_ids": [1, 2], "texts": [HOSTILE, HOSTILE], "parents": [0, 0], "accepted": [1]}
    pieces = [{"choices": [{"spans": [[HOSTILE, True], [HOSTILE, False]], "trees": [tree]}]}]
    async with StandIn(HOSTILE, [*pieces, {"error": {"message": HOSTILE}}]) as server:
        yield server.url


async def test_hostile_output_is_shown_and_not_run(page: Page, hostile: str) -> None:
    await page.open(hostile)
    await page.until("document.getElementById('model').textContent.includes('onerror')")
    await page.type("question", "x")
    await page.click("send")
    await page.until("!document.getElementById('error').hidden")
    await asyncio.sleep(0.3)
    assert HOSTILE in await page.run("document.querySelector('.turn.assistant').textContent")
    assert await page.text("error") == HOSTILE
    assert await page.run("window.harmed") is None
    assert await page.run("document.querySelectorAll('main img, main script').length") == 0
    planted = "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.harmed=1\">')"
    await page.run(planted)
    await asyncio.sleep(0.3)
    assert await page.run("window.harmed") is None, "the policy forbids what the page itself lets through"
