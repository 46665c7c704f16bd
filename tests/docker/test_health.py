"""The container's health check, run as the container runs it."""

import asyncio
import os
import sys
from urllib.parse import urlsplit

import pytest

from tests.docker.conftest import DOCKER
from tests.patience import TRIES
from tests.server.conftest import Start, folder, start, tokenizer

__all__ = ["folder", "start", "tokenizer"]


async def health(port: int | None, **environment: str) -> tuple[int, str]:
    """Asked again where the server, a part of this process, did not answer within its four seconds."""
    for _ in range(TRIES):
        code, said = await _health(port, **environment)
        if "timed out" not in said:
            break
    return code, said


async def _health(port: int | None, **environment: str) -> tuple[int, str]:
    given = {name: value for name, value in os.environ.items() if not name.startswith("AIP_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(DOCKER / "health.py"),
        env=given | ({} if port is None else {"AIP_HTTP_PORT": str(port)}) | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_a_server_that_takes_requests_is_healthy(start: Start) -> None:
    async with start() as live:
        assert await health(urlsplit(live.url).port) == (0, "")


async def test_the_platform_may_choose_the_route(start: Start) -> None:
    async with start(settings={"server": {"health_route": "/alive"}}) as live:
        port = urlsplit(live.url).port
        assert await health(port, AIP_HEALTH_ROUTE="/alive") == (0, "")
        code, said = await health(port, AIP_HEALTH_ROUTE="/elsewhere")
        assert code == 1 and "/elsewhere answers 404" in said


async def test_a_server_that_loads_or_drains_is_not(start: Start) -> None:
    async with start(ready=False) as live:
        code, said = await health(urlsplit(live.url).port)
        assert code == 1 and "/ready answers 503" in said and "being loaded" in said
    async with start() as live:
        live.service.admission.draining = True
        code, said = await health(urlsplit(live.url).port)
        assert code == 1 and "shutting down" in said


@pytest.mark.parametrize("port", [1])
async def test_nothing_there_is_not(port: int) -> None:
    code, said = await health(port)
    assert code == 1 and f"nothing answers on port {port}" in said
