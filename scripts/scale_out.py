"""Two replicas of Aerie behind SGLang's model gateway on one machine, and one of them killed under load.

    python scripts/scale_out.py --config configs/serve/demo.yaml --requests 60 --concurrency 6

Starts everything on loopback, sends streams through the gateway without retries, kills a replica when a third of them
has ended, restarts it, and writes the outcome of the requests as one line of JSON. Exits with code 1 if a request was
lost before it began to stream, or if the gateway did not find the replica again.
The gateway is the package `sglang-router`; --gateway-python names an interpreter that has it.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

HOME = Path(__file__).resolve().parents[1]
QUESTIONS = ("Count from 20 to 60 in steps of 2.", "Sort ascending: 48, 12, 75", "Repeat: 402 lamp Sore fan")
PATIENCE = 300.0
"""Seconds for replicas to load and for the gateway to notice a change."""
GATEWAY = (
    "--policy=round_robin",
    "--health-check-endpoint=/ready",  # a draining replica answers 503 there and gets no new requests
    "--health-check-interval-secs=1",
    "--health-check-timeout-secs=2",
    "--health-failure-threshold=2",
    "--health-success-threshold=1",
    "--cb-failure-threshold=2",
    "--cb-timeout-duration-secs=2",
    "--retry-max-retries=5",
    "--log-level=warn",
)


@dataclass(slots=True)
class Outcomes:
    """Requests that `ended` well, were `cut` while streaming, or were `lost` before anything was streamed."""

    ended: int = 0
    cut: int = 0
    lost: int = 0
    by_replica: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)


def main() -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    words.add_argument("--config", default="configs/serve/demo.yaml", help="what each replica serves")
    words.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the replicas")
    words.add_argument("--requests", type=int, default=60)
    words.add_argument("--concurrency", type=int, default=6)
    words.add_argument("--max-tokens", type=int, default=64)
    words.add_argument("--gateway-python", default=sys.executable)
    words.add_argument("--json", type=Path, help="append the line to this file too")
    words.add_argument("--logs", type=Path, default=Path("build/scale_out"))
    given = words.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # any end of this process stops what it started
    given.logs.mkdir(parents=True, exist_ok=True)
    line = asyncio.run(_scale_out(given))
    text = json.dumps(line)
    print(text)
    if given.json is not None:
        with given.json.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    return 0 if line["lost"] == 0 and line["replicas_at_the_end"] == 2 else 1


async def _scale_out(given: argparse.Namespace) -> dict[str, object]:
    ports = _free_ports(4)
    urls = [f"http://127.0.0.1:{port}" for port in ports[:2]]
    gateway = f"http://127.0.0.1:{ports[2]}"
    with contextlib.ExitStack() as stack:
        replicas = [stack.enter_context(_replica(given, port)) for port in ports[:2]]
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session:
            for url in urls:
                await _until(session, f"{url}/ready", given.logs)
            stack.enter_context(_gateway(given, urls, ports[2], ports[3]))
            await _healthy(session, gateway, 2)
            outcomes = Outcomes()
            half = asyncio.Event()
            load = asyncio.create_task(_load(session, gateway, given, outcomes, half))
            await half.wait()
            os.killpg(replicas[0].pid, signal.SIGKILL)
            replicas[0].wait()
            killed = time.monotonic()
            await _healthy(session, gateway, 1)
            noticed = time.monotonic() - killed
            await load
            stack.enter_context(_replica(given, ports[0]))
            await _until(session, f"{urls[0]}/ready", given.logs)
            at_the_end = await _healthy(session, gateway, 2)
            again = Outcomes()
            for _ in range(4):
                await _ask(session, gateway, given, again, QUESTIONS[0])
    return {
        "requests": given.requests,
        "concurrency": given.concurrency,
        "ended": outcomes.ended,
        "cut_while_streaming": outcomes.cut,
        "lost": outcomes.lost + again.lost,
        "requests_by_replica": sorted(outcomes.by_replica.values()),
        "seconds_until_noticed": round(noticed, 2),
        "replicas_at_the_end": min(at_the_end, len(again.by_replica)),
        "errors": outcomes.errors[:5],
    }


async def _load(
    session: aiohttp.ClientSession, gateway: str, given: argparse.Namespace, outcomes: Outcomes, half: asyncio.Event
) -> None:
    """Closed loops that share the requests; `half` is set when a third of them has ended."""
    left = list(range(given.requests))

    async def loop() -> None:
        while left:
            number = left.pop()
            await _ask(session, gateway, given, outcomes, QUESTIONS[number % len(QUESTIONS)])
            if outcomes.ended >= given.requests // 3:
                half.set()

    try:
        await asyncio.gather(*(loop() for _ in range(given.concurrency)))
    finally:
        half.set()


async def _ask(
    session: aiohttp.ClientSession, gateway: str, given: argparse.Namespace, outcomes: Outcomes, question: str
) -> None:
    """One stream, sent once, without retries."""
    body = {
        "model": "aerie-demo",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": given.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    begun = False
    try:
        async with session.post(f"{gateway}/v1/chat/completions", json=body) as answer:
            if answer.status != 200:
                raise OSError(f"{answer.status} {(await answer.text())[:200]}")
            async for line in answer.content:
                text = line.decode().removeprefix("data: ").strip()
                if text == "[DONE]":
                    outcomes.ended += 1
                    return
                if not text or text.startswith(":"):
                    continue
                event = json.loads(text)
                if "error" in event:
                    raise OSError(str(event["error"]))
                if not begun:
                    outcomes.by_replica[event["system_fingerprint"]] += 1
                begun = True
            raise OSError("the stream broke off")
    except (OSError, aiohttp.ClientError) as error:
        outcomes.errors.append(f"{'cut' if begun else 'lost'}: {error}")
        if begun:
            outcomes.cut += 1
        else:
            outcomes.lost += 1


@contextlib.contextmanager
def _replica(given: argparse.Namespace, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "aerie", "serve", given.config, f"server.port={port}", *given.set]
    with _process(command, given.logs / f"replica-{port}.log") as process:
        yield process


@contextlib.contextmanager
def _gateway(given: argparse.Namespace, urls: list[str], port: int, metrics_port: int) -> Iterator[None]:
    where = ("--host=127.0.0.1", f"--port={port}", f"--prometheus-port={metrics_port}")
    command = [given.gateway_python, "-m", "sglang_router.launch_router", "--worker-urls", *urls, *where, *GATEWAY]
    with _process(command, given.logs / "gateway.log"):
        yield


@contextlib.contextmanager
def _process(command: list[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in a separate group, which ends with this block."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, cwd=HOME, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def _until(session: aiohttp.ClientSession, url: str, logs: Path) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(OSError, aiohttp.ClientError):
            async with session.get(url) as answer:
                if answer.status == 200:
                    return
        await asyncio.sleep(0.2)
    raise SystemExit(f"{url} was not ready within {PATIENCE:g} s; the logs are in {logs}")


async def _healthy(session: aiohttp.ClientSession, gateway: str, wanted: int) -> int:
    """Waits until the gateway considers this many replicas healthy."""
    end = time.monotonic() + PATIENCE
    found = -1
    while time.monotonic() < end:
        with contextlib.suppress(OSError, aiohttp.ClientError):
            async with session.get(f"{gateway}/workers") as answer:
                found = sum(worker["is_healthy"] for worker in (await answer.json())["workers"])
            if found == wanted:
                return found
        await asyncio.sleep(0.05)
    raise SystemExit(f"the gateway holds {found} replicas for healthy; {wanted} were due within {PATIENCE:g} s")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


if __name__ == "__main__":
    sys.exit(main())
