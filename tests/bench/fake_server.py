"""A small OpenAI server whose times are known, and which fails on demand: what the load generator is measured by."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web


@dataclass
class Manners:
    """`pieces` texts, `per_piece` tokens each; the first after `ttft` seconds, the others `gap` apart."""

    ttft: float = 0.05
    gap: float = 0.02
    pieces: int = 6
    per_piece: int = 1
    refuse: int = 0
    """So many requests are answered `refusal` with Retry-After `wait`."""
    refusal: int = 503
    wait: str = "0.05"
    hang_up: int = 0
    """So many requests find their connection closed instead of an answer."""
    closes: bool = False
    """A connection is closed once it has had an answer, as the next request comes."""
    cut_after: int | None = None
    """The stream's connection is closed after so many pieces."""
    error_after: int | None = None
    status: int = 200
    drafted: bool = False
    reported: bool = True
    """Whether usage is sent."""
    stuck: Path | None = None
    """While this file exists, requests wait."""
    metrics: str | None = None
    """The text of /metrics; none, and it is not found."""
    sent: list[list[float]] = field(default_factory=list)
    """When each piece of each request left, on the clock of time.monotonic()."""
    answered: set[asyncio.BaseTransport] = field(default_factory=set)
    """Connections that have had an answer, if it `closes` them."""
    open: int = 0
    most_open: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)


def application(manners: Manners) -> web.Application:
    app = web.Application()

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake"}]})

    async def chat(request: web.Request) -> web.StreamResponse:
        manners.bodies.append(await request.json())
        while manners.stuck is not None and manners.stuck.exists():
            await asyncio.sleep(0.01)
        if manners.refuse:
            manners.refuse -= 1
            return web.json_response({"error": {}}, status=manners.refusal, headers={"retry-after": manners.wait})
        if manners.hang_up:
            manners.hang_up -= 1
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if manners.closes:
            assert request.transport is not None
            if request.transport in manners.answered:
                request.transport.abort()
                return web.Response()
            manners.answered.add(request.transport)
        if manners.status != 200:
            return web.json_response({"error": {}}, status=manners.status)
        manners.open += 1
        manners.most_open = max(manners.most_open, manners.open)
        try:
            return await _stream(request, manners)
        finally:
            manners.open -= 1

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=manners.metrics) if manners.metrics is not None else web.Response(status=404)

    app.router.add_get("/metrics", metrics)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", chat)
    return app


@asynccontextmanager
async def serving(manners: Manners) -> AsyncIterator[str]:
    """The base URL."""
    runner = web.AppRunner(application(manners))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _stream(request: web.Request, manners: Manners) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await answer.prepare(request)

    async def send(data: Any) -> None:
        if isinstance(data, dict):
            data |= {"object": "chat.completion.chunk", "id": "chatcmpl-1", "model": "fake", "created": 0}
        await answer.write(b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n")

    await send({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    await asyncio.sleep(manners.ttft)
    own: list[float] = []
    manners.sent.append(own)
    for number in range(manners.pieces):
        if number:
            await asyncio.sleep(manners.gap)
        if number == manners.cut_after:
            request.transport.close()  # type: ignore[union-attr]
            return answer
        if number == manners.error_after:
            await send({"error": {"message": "gone"}})
            return answer
        own.append(time.monotonic())
        await send({"choices": [{"delta": {"content": "word "}}], "usage": None})
    tokens = manners.pieces * manners.per_piece
    usage: dict[str, Any] = {"prompt_tokens": 7, "completion_tokens": tokens}
    if manners.drafted:
        steps = manners.pieces
        usage["speculation"] = {
            "steps": steps,
            "drafted": 3 * steps,
            "accepted": 2 * steps,
            "accepted_per_position": [steps, steps, 0],
        }
    if manners.reported:
        await send({"choices": [], "usage": usage})
    await send(b"[DONE]")
    return answer
