"""Handles every HTTP request before the application does: assigns an id, checks the API key, bounds the body. HEAD is
answered as GET; uvicorn leaves the body out.

Middleware around the routes. It reads the body, so that a body that is too large is rejected before anything parses it.
Paths come from the scope, never from a URL built with the Host header.
"""

import asyncio
import hashlib
import hmac
import re
import uuid

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aerie.contracts.errors import AerieError, Overloaded, RequestTimeout, TooLarge, Unauthorized, UnsupportedEncoding
from aerie.server.http.connection import CLIENT_CLOSED, CallerGone, while_serving
from aerie.server.http.problems import error_answer

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/version"})
"""Paths that need no API key, besides the playground's. All other paths need it, known or not."""
REQUEST_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")


class Gate:
    """`cut` is set when the server drops the connections that keep it from shutting down."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_key: str | None,
        max_body_bytes: int,
        body_seconds: float,
        cut: asyncio.Event,
        open_paths: frozenset[str] = OPEN_PATHS,
    ) -> None:
        self._app = app
        self._cut = cut
        self._open_paths = open_paths
        self._key = None if api_key is None else _digest(api_key.encode())
        self._max_body_bytes = max_body_bytes
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            self._check_key(scope["path"], headers)
            self._check_encoding(headers)
            body = await while_serving(self._cut, self._read_body(headers, receive))
        except AerieError as error:
            await error_answer(error)(scope, receive, send_with_id)
        except CallerGone:
            await self._left()(scope, receive, send_with_id)
        else:
            if scope["method"] == "HEAD":
                scope = {**scope, "method": "GET"}
            await self._app(scope, _replay(body, receive), send_with_id)

    def _check_key(self, path: str, headers: dict[bytes, bytes]) -> None:
        if self._key is None or path in self._open_paths:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        # Compares digests, so that the time taken reveals neither length nor content.
        if scheme.lower() != b"bearer" or not hmac.compare_digest(_digest(given.strip()), self._key):
            raise Unauthorized("the API key is missing or wrong; send it as Authorization: Bearer KEY")

    def _check_encoding(self, headers: dict[bytes, bytes]) -> None:
        encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip()
        if encoding.lower() not in ("", "identity"):
            raise UnsupportedEncoding(
                f"the body is compressed ({encoding[:64]}); send it plain, without Content-Encoding"
            )

    def _left(self) -> Response:
        """The answer to a caller who left before the body was complete, or was still sending when the server ended."""
        if not self._cut.is_set():
            return Response(status_code=CLIENT_CLOSED)
        return error_answer(Overloaded("the body was not complete when the server shut down", code="draining"))

    async def _read_body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self._max_body_bytes:
            raise self._too_large(f"{int(declared)} bytes")
        body = bytearray()
        try:
            async with asyncio.timeout(self._body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise CallerGone
                    body += message.get("body", b"")
                    if len(body) > self._max_body_bytes:
                        raise self._too_large(f"more than {self._max_body_bytes} bytes")
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            limit = f"{self._body_seconds:g} s (server.body_seconds)"
            raise RequestTimeout(f"{len(body)} bytes of the body came in {limit}, and no end") from None

    def _too_large(self, given: str) -> TooLarge:
        return TooLarge(f"the body has {given}; at most {self._max_body_bytes} are allowed (limits.max_body_bytes)")


def _request_id(headers: dict[bytes, bytes]) -> str:
    """The caller's X-Request-Id if it is short and plain, else a new id."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


def _replay(body: bytes, receive: Receive) -> Receive:
    """Returns the body once, then the connection's further messages."""
    unread = [body]

    async def replay() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return replay
