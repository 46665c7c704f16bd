"""API processes of tests: real ones, each with a fake scheduler as its child."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.house import HOME
from tests.patience import PATIENCE, runs


class Process:
    def __init__(self, process: asyncio.subprocess.Process, hello: dict[str, Any]) -> None:
        self.process = process
        self.url: str = hello["url"]
        self.scheduler: int = hello["scheduler"]

    async def end(self) -> tuple[int, dict[str, Any], str]:
        """Exit code, the last line, and all that was logged."""
        out, err = await asyncio.wait_for(self.process.communicate(), PATIENCE)
        assert self.process.returncode is not None
        return self.process.returncode, json.loads(out.splitlines()[-1]), err.decode()


@contextlib.asynccontextmanager
async def serving(folder: Path, *overrides: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.server.serve_fake",
        str(folder),
        "server.port=0",
        *overrides,
        cwd=HOME,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    server: Process | None = None
    try:
        server = Process(process, json.loads(await asyncio.wait_for(process.stdout.readline(), PATIENCE)))
        yield server
    finally:
        if process.returncode is None:  # a test has failed; a scheduler that it has stopped would hold our pipes
            process.kill()
            if server is not None and runs(server.scheduler):
                os.kill(server.scheduler, signal.SIGKILL)
            await process.communicate()


async def until_draining(http: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            async with http.get(f"{url}/ready") as answer:
                if answer.status == 503:
                    assert (await answer.json())["error"]["code"] == "draining"
                    return
            await asyncio.sleep(0.01)
