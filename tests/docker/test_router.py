"""The router of the profile `scale`, run by a real HAProxy in front of two servers: it spreads, and it forgives."""

import asyncio
import contextlib
import re
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import yaml

from tests.docker.conftest import DOCKER, found
from tests.patience import PATIENCE
from tests.server.conftest import Live, Start, folder, http, start, tokenizer

__all__ = ["folder", "http", "start", "tokenizer"]
CONFIG = DOCKER / "router/haproxy.cfg"
HINT = "Debian's package has that name"
BODY = {"messages": [{"role": "user", "content": "hi"}]}


def routed(replicas: list[Live], listener: socket.socket) -> str:
    """Our file with addresses in place of the names that compose's own name server knows, at a socket that is open
    already, and patient with replicas that a stalled machine keeps from answering a check.
    """
    text = CONFIG.read_text(encoding="utf-8")
    servers = [f"    server replica{at} {urlsplit(one.url).netloc}" for at, one in enumerate(replicas)]
    text = re.sub(r"(?m)^    server-template .*$", "\n".join(servers), text)
    text = text.replace(" resolvers compose init-addr libc,none", "")
    text = text.replace("    retries 2", f"    retries 2\n    timeout check {PATIENCE:.0f}s")
    return text.replace("bind :8080", f"bind fd@{listener.fileno()}")


@contextlib.asynccontextmanager
async def router(replicas: list[Live], folder: Path) -> AsyncIterator[str]:
    program = found("haproxy", HINT)
    path = folder / "haproxy.cfg"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        path.write_text(routed(replicas, listener), encoding="utf-8")
        command, inherited = [program, "-db", "-f", str(path)], [listener.fileno()]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, pass_fds=inherited)
        port = listener.getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE)


def test_haproxy_takes_the_file(tmp_path: Path) -> None:
    program = found("haproxy", HINT)
    text = CONFIG.read_text(encoding="utf-8")
    for name, content, code in (("right", text, 0), ("wrong", text.replace("balance", "ballance"), 1)):
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        done = subprocess.run([program, "-c", "-f", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr


def test_there_is_a_place_for_every_replica_that_compose_starts() -> None:
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]
    template = re.search(r"server-template replica (\d+) replica:(\d+)", CONFIG.read_text(encoding="utf-8"))
    assert template is not None
    assert int(template[1]) >= services["replica"]["deploy"]["replicas"]
    assert template[2] == "8000"


async def test_requests_go_where_they_are_taken(start: Start, tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with start() as one, start() as other, router([one, other], tmp_path) as url:
        await until(http, url, 200)

        async def ask(count: int) -> set[int]:
            async def once() -> int:
                async with http.post(f"{url}/v1/chat/completions", json=BODY) as answer:
                    await answer.read()
                    return answer.status

            return set(await asyncio.gather(*(once() for _ in range(count))))

        assert await ask(12) == {200}
        assert one.fake.seen and other.fake.seen, "both replicas take part"
        one.service.admission.draining = True
        await until(http, url, 200, times=10)  # it takes turns: its checks, a second apart, have taken the other out
        before = len(one.fake.seen)
        assert await ask(6) == {200}
        assert len(one.fake.seen) == before, "a replica that drains gets nothing new"
        other.service.admission.draining = True
        await until(http, url, 503)


async def until(http: aiohttp.ClientSession, url: str, status: int, *, times: int = 1) -> None:
    """So many times in a row."""
    seen = 0
    async with asyncio.timeout(PATIENCE):
        while seen < times:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(f"{url}/ready") as answer:
                    seen = seen + 1 if answer.status == status else 0
            await asyncio.sleep(0.02)
