"""A headless Chromium, spoken to over its DevTools protocol; tests skip where none is installed."""

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.patience import PATIENCE, come

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0")


class Page:
    """One tab. `console` has what the page logged and what it refused to load or run."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._listener = asyncio.create_task(self._listen())
        self.console: list[str] = []

    async def open(self, url: str) -> None:
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        arrival = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        answer = await asyncio.wait_for(arrival, PATIENCE)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    async def run(self, script: str) -> Any:
        """The value of an expression; a promise is awaited."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, condition: str) -> None:
        end = asyncio.get_running_loop().time() + PATIENCE
        while not await self.run(condition):
            assert asyncio.get_running_loop().time() < end, f"never: {condition}; {self.console}"
            await asyncio.sleep(0.05)

    async def text(self, id: str) -> str:
        return await self.run(f"document.getElementById({id!r}).textContent")

    async def click(self, id: str) -> None:
        await self.run(f"document.getElementById({id!r}).click()")

    async def type(self, id: str, text: str) -> None:
        await self.run(f"document.getElementById({id!r}).value = {json.dumps(text)}")

    async def look(self, width: int, height: int, *, dark: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}  # pictures show where a movement ends
        await self.call("Emulation.setEmulatedMedia", features=[scheme, still])

    async def picture(self, path: Path) -> None:
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(found["data"]))

    async def close(self) -> None:
        self._listener.cancel()
        await self._socket.close()

    async def _listen(self) -> None:
        async for frame in self._socket:
            message = json.loads(frame.data)
            if "id" in message:
                self._waiting.pop(message["id"]).set_result(message)
            elif message["method"] == "Runtime.consoleAPICalled":
                self.console.append(" ".join(str(part.get("value", "")) for part in message["params"]["args"]))
            elif message["method"] == "Log.entryAdded":
                self.console.append(message["params"]["entry"]["text"])


@contextlib.asynccontextmanager
async def browsing(profile: Path) -> AsyncIterator[Page]:
    """A tab of a Chromium of its own."""
    assert _CHROMIUM is not None, "no Chromium here; the Debian package chromium has one"
    browser = subprocess.Popen(
        [_CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = await _port(profile / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session:
            page = Page(await session.ws_connect(await _tab(session, port), max_msg_size=0))
            yield page
            await page.close()
    finally:
        browser.kill()
        browser.wait(PATIENCE)


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    if _CHROMIUM is None:
        pytest.skip("no Chromium here; the Debian package chromium has one")
    async with browsing(tmp_path / "profile") as page:
        yield page


async def _tab(session: aiohttp.ClientSession, port: str) -> str:
    """The address of the first tab, which may come after the port."""
    async with asyncio.timeout(PATIENCE):
        while True:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                tabs = [tab for tab in json.loads(await answer.text()) if tab["type"] == "page"]
            if tabs:
                address: str = tabs[0]["webSocketDebuggerUrl"]
                return address
            await asyncio.sleep(0.05)


async def _port(file: Path) -> str:
    await come(lambda: file.exists() and file.read_text().count("\n"), "Chromium did not open its DevTools port")
    return file.read_text().splitlines()[0]
