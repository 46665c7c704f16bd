"""Takes the pictures of docs/playground.md: `python -m tests.browser.pictures [FOLDER]`."""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.browser.conftest import Page, browsing
from tests.e2e.conftest import HOME, Server

LOOKS = {"light": (1200, 900, False), "dark": (1200, 900, True), "phone": (390, 844, False)}


async def ask(page: Page, question: str, button: str) -> None:
    await page.type("question", question)
    await page.click(button)
    await page.until("document.getElementById('stop').disabled")


async def take(folder: Path) -> None:
    with Server("spec.topk=3", "spec.nodes=12") as server, tempfile.TemporaryDirectory() as profile:
        for name, (width, height, dark) in LOOKS.items():
            async with browsing(Path(profile) / name) as page:
                await page.look(width, height, dark=dark)
                await page.open(server.url)
                await page.until("document.getElementById('model').textContent === 'aerie-demo'")
                await page.type("max-tokens", "70")
                await ask(page, "Count from 5 to 50 in steps of 5.", "send")
                await page.run("document.activeElement.blur()")
                if name == "light":
                    await ask(page, "Count from 1 to 66 in steps of 1.", "compare")
                await page.picture(folder / f"playground-{name}.png")


if __name__ == "__main__":
    asyncio.run(take(Path(sys.argv[1]) if len(sys.argv) > 1 else HOME / "docs/images"))
