"""Counts HTTP requests and the time to answer them, whoever answers. The outermost middleware, set up by `app`."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aerie.server.http.paths import Paths
from aerie.server.telemetry.metrics import Metrics

_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST"})


class Meter:
    """Labels are bounded: a path without a route becomes `none`, a method that no route uses becomes `other`."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Paths) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        status = 500  # for a bug, which is answered further out

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            handler = self._paths.pattern(scope["path"]) or "none"
            self._metrics.http(handler, method, status, time.monotonic() - began)
