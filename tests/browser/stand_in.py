"""The real page over a server of a test's own making: what it answers, and when it is ready, is the test's to say."""

import asyncio
import json
from typing import Any

from aiohttp import web

from aerie.server.playground import _HEADERS
from tests.house import HOME

_FOLDER = HOME / "server/playground"


class StandIn:
    """Use in an `async with`. `pieces` are the chunks of every answer's stream, which ends there, unless `status` is an
    error's. `key` is asked for where it is given. `asked` has the bodies of requests.
    """

    def __init__(self, model: str, pieces: list[dict[str, Any]], *, key: str = "") -> None:
        self.model, self.pieces, self.key = model, pieces, key
        self.ready = asyncio.Event()
        self.ready.set()
        self.status = 200
        self.asked: list[dict[str, Any]] = []

    async def __aenter__(self) -> "StandIn":
        app = web.Application()
        app.router.add_get("/", self._file)
        app.router.add_get("/playground/{name}", self._file)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/ready", self._ready)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _file(self, request: web.Request) -> web.FileResponse:
        return web.FileResponse(_FOLDER / (request.match_info.get("name") or "index.html"), headers=_HEADERS)

    async def _models(self, request: web.Request) -> web.Response:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return _problem(401, "invalid_api_key")
        return web.json_response({"data": [{"id": self.model}]})

    async def _ready(self, _: web.Request) -> web.Response:
        return web.json_response({}) if self.ready.is_set() else _problem(503, "starting")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        if self.status != 200:
            return _problem(self.status, "unknown")
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        for piece in self.pieces:
            await answer.write(f"data: {json.dumps(piece)}\n\n".encode())
        if "error" not in self.pieces[-1]:
            await answer.write(b"data: [DONE]\n\n")
        return answer


def _problem(status: int, code: str) -> web.Response:
    return web.json_response({"error": {"message": f"a problem: {code}", "code": code}}, status=status)
