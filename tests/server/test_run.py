"""The life and death of the API process: drain, signals, a killed scheduler, a busy port."""

import asyncio
import json
import os
import resource
import signal
import socket
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aerie.contracts.errors import ConfigError
from aerie.contracts.server_section import ServerConfig
from aerie.server.run import SPARE_DESCRIPTORS, _allow_descriptors, listen, url_of
from tests.patience import PATIENCE, quickest_of
from tests.server.processes import serving, until_draining

LONG = {"prompt": "x", "max_tokens": 490, "stream": True, "ignore_eos": True}


async def events(answer: aiohttp.ClientResponse) -> list[Any]:
    async with asyncio.timeout(PATIENCE):
        text = await answer.text()
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_running_requests_are_drained(folder: Path, http: aiohttp.ClientSession, number: int) -> None:
    async with serving(folder) as server:
        async with http.post(f"{server.url}/v1/completions", json=LONG) as running:
            await running.content.readline()
            server.process.send_signal(number)
            await until_draining(http, server.url)
            async with http.get(f"{server.url}/health") as health:
                assert health.status == 200
            async with http.post(f"{server.url}/v1/completions", json={"prompt": "x"}) as refused:
                assert refused.status == 503
                assert (await refused.json())["error"]["code"] == "draining"
                assert "retry-after" in refused.headers
            os.kill(server.scheduler, signal.SIGUSR1)  # until here nothing could finish
            said = await events(running)
        assert said[-1]["choices"][0]["finish_reason"] == "length"
        code, last, log = await server.end()
        assert code == 0
        assert last == {"heavy_imports": [], "scheduler_exit": 0}
        assert "Traceback" not in log


async def test_a_drain_ends_in_its_bound(folder: Path, http: aiohttp.ClientSession) -> None:
    async def draining() -> float:
        async with serving(folder, "server.drain_seconds=0.3") as server:
            async with http.post(f"{server.url}/v1/completions", json=LONG) as running:
                await running.content.readline()
                os.kill(server.scheduler, signal.SIGSTOP)  # nothing will finish
                asked = time.monotonic()
                server.process.terminate()
                said = await events(running)
                took = time.monotonic() - asked
                os.kill(server.scheduler, signal.SIGCONT)
            assert said[-1]["error"]["code"] == "draining"
            code, _, log = await server.end()
            assert code == 0
            assert "Traceback" not in log
        return took

    assert await quickest_of(draining, 3) < 3


async def test_a_second_signal_ends_sooner(folder: Path, http: aiohttp.ClientSession) -> None:
    async with serving(folder, "server.drain_seconds=60") as server:
        async with http.post(f"{server.url}/v1/completions", json=LONG) as running:
            await running.content.readline()
            os.kill(server.scheduler, signal.SIGSTOP)
            server.process.send_signal(signal.SIGINT)
            await until_draining(http, server.url)
            server.process.send_signal(signal.SIGINT)
            said = await asyncio.wait_for(events(running), 30)  # half of what one signal would take
            os.kill(server.scheduler, signal.SIGCONT)
        assert said[-1]["error"]["code"] == "draining"
        code, _, log = await server.end()
        assert code == 0
        assert "Traceback" not in log


async def test_a_killed_scheduler_ends_every_stream_and_the_process(folder: Path, http: aiohttp.ClientSession) -> None:
    async def killing() -> float:
        async with serving(folder) as server:
            os.kill(server.scheduler, signal.SIGSTOP)
            streams = [asyncio.create_task(whole(http, server.url, LONG)) for _ in range(5)]
            plain = asyncio.create_task(whole(http, server.url, LONG | {"stream": False}))
            await until_taken(http, server.url, 6)
            killed = time.monotonic()
            os.kill(server.scheduler, signal.SIGKILL)
            for text in await asyncio.gather(*streams, plain):
                assert '"code":"engine_dead"' in text
            took = time.monotonic() - killed
            code, last, log = await server.end()
            assert code == 1
            assert last["scheduler_exit"] == -signal.SIGKILL
            assert "Traceback" not in log and "ended unexpectedly" in log
        return took

    assert await quickest_of(killing, 2) < 2


async def test_a_stream_in_flight_gets_an_error_event(folder: Path, http: aiohttp.ClientSession) -> None:
    async def killing() -> float:
        async with (
            serving(folder) as server,
            http.post(f"{server.url}/v1/completions", json=LONG) as running,
        ):
            await running.content.readline()
            killed = time.monotonic()
            os.kill(server.scheduler, signal.SIGKILL)
            said = await events(running)
            assert said[-1]["error"]["code"] == "engine_dead"
            return time.monotonic() - killed

    assert await quickest_of(killing, 2) < 2


async def test_a_scheduler_that_dies_early_is_told(folder: Path) -> None:
    async with serving(folder) as server:
        os.kill(server.scheduler, signal.SIGKILL)
        assert (await server.end())[0] == 1


async def test_connections_that_never_read_do_not_hold_the_end_up(folder: Path) -> None:
    async with serving(folder, "server.drain_seconds=1") as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as idle, socket.create_connection((host, int(port))):
            idle.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf")
            server.process.terminate()
            code, _, log = await server.end()
        assert code == 0
        assert "Traceback" not in log


async def test_a_busy_port_is_named(folder: Path) -> None:
    with listen(ServerConfig(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is busy"):
            listen(ServerConfig(port=port))
        assert url_of(taken) == f"http://127.0.0.1:{port}"
    with listen(ServerConfig(host="0.0.0.0", port=0)) as everywhere:
        assert url_of(everywhere) == f"http://127.0.0.1:{everywhere.getsockname()[1]}"
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.1"):
        listen(ServerConfig(host="203.0.113.1", port=0))


def test_descriptors_suffice_for_the_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        _allow_descriptors(300)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300 + SPARE_DESCRIPTORS, hard)
        _allow_descriptors(10)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300 + SPARE_DESCRIPTORS, hard), "never lowered"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def until_taken(http: aiohttp.ClientSession, url: str, places: int) -> None:
    taken = f'aerie:places_taken{{model_name="demo"}} {places}.0\n'
    async with asyncio.timeout(PATIENCE):
        while True:
            async with http.get(f"{url}/metrics") as answer:
                if taken in await answer.text():
                    return
            await asyncio.sleep(0.01)


async def whole(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> str:
    async with asyncio.timeout(PATIENCE), http.post(f"{url}/v1/completions", json=body) as answer:
        return await answer.text()
