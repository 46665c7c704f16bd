"""Extends uvicorn's fast HTTP parser: bounds the size of heads, the time they take and the number of connections, sends
errors in Aerie's shape, answers HTTP/1.0 without chunks, and reads the bodies of requests that offer an upgrade.

uvicorn makes one BoundedHttp per connection. `gate` bounds the time for a body; uvicorn bounds the idle time between
requests.
"""

import asyncio
import re
from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from aerie.contracts.errors import AerieError, BadRequest, Overloaded, RequestTimeout
from aerie.contracts.server_section import ServerConfig
from aerie.server.http.problems import error_answer

MAX_HEAD_BYTES = 64 << 10
"""Limit for a request line and its headers together."""
LINGER_SECONDS = 10.0
"""How long the rest of a body is read and dropped once its request is answered. If the connection closed at once, a
client that still sends would not see the answer.
"""
_OFFER = re.compile(rb"^upgrade(?=:)", re.IGNORECASE | re.MULTILINE)
_HIDDEN = b"ignored"
"""As long as the text that it replaces."""


class BoundedHttp(HttpToolsProtocol):
    _head_bytes = 0
    _in_head = True
    """True between requests too."""
    _advanced = False
    """Whether the current piece completed a head or a body; its remaining bytes are not counted."""
    _timer: asyncio.TimerHandle | None = None
    _quiet_since: float | None = None
    """Since when the server has waited for the client; None while the client waits for an answer."""

    def __init__(self, *args: Any, settings: ServerConfig, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._settings = settings

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._quiet_since = self.loop.time()
        self._end_in(self._settings.header_seconds)
        if len(self.connections) > self._settings.max_connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._advanced = False
        super().data_received(_without_offer(data) if self._in_head else data)
        self._head_bytes = self._head_bytes + len(data) if self._in_head and not self._advanced else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
        elif self._in_head and self._answered and self._timer is None:
            self._end_in(self._settings.header_seconds)

    def on_headers_complete(self) -> None:
        self._in_head, self._advanced = False, True
        self._stop_timer()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse_head()
            raise ValueError("the head is too large")  # the parser stops here
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.cycle.send = _without_chunks(self.cycle)  # type: ignore[method-assign]

    def on_message_complete(self) -> None:
        self._in_head, self._advanced = True, True
        self._stop_timer()
        if not self._answered:
            self._quiet_since = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._answered:
            self._quiet_since = self.loop.time()
            if not self._in_head:
                self._end_in(LINGER_SECONDS)

    def send_400_response(self, msg: str) -> None:
        self._refuse(BadRequest(msg, code="malformed_request"))

    @property
    def _answered(self) -> bool:
        """Whether no request waits for its answer. A request with an incomplete head does not wait yet."""
        return self.cycle is None or self.cycle.response_complete

    def _make_room(self) -> None:
        """Closes the connection with the longest silent client, or this one if all clients wait for answers."""
        others: Any = self.connections - {self}
        quiet = [one for one in others if one._quiet_since is not None]
        if quiet:
            longest = min(quiet, key=lambda one: one._quiet_since)
            longest._quiet_since = None
            longest.transport.abort()
        else:
            most = self._settings.max_connections
            busy = f"all {most} connections wait for answers (server.max_connections); try again later"
            self._refuse(Overloaded(busy, code="too_many_connections"))

    def _end_in(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._give_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self._in_head and self._head_bytes:
            limit = f"{self._settings.header_seconds:g} s (server.header_seconds)"
            self._refuse(RequestTimeout(f"the request's head was not complete after {limit}"))
        else:
            self.transport.abort()

    def _refuse_head(self) -> None:
        self.send_400_response(f"the request's head has more than {MAX_HEAD_BYTES} bytes")

    def _refuse(self, error: AerieError) -> None:
        """Sends the error unless an answer is in progress, and closes the connection."""
        if not self.transport.is_closing() and (self._answered or not self.cycle.response_started):
            answer = error_answer(error, {"connection": "close"})
            headers = [b"%s: %s\r\n" % header for header in answer.raw_headers]
            self.transport.write(b"".join([STATUS_LINE[error.status], *headers, b"\r\n", answer.body]))
        self.transport.close()


def _without_chunks(cycle: RequestResponseCycle) -> Any:
    """The cycle's `send` for a client without support for chunks: closing the connection ends the body."""
    send = cycle.send
    cycle.chunked_encoding = False

    async def plain(message: ASGISendEvent) -> None:
        if message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return plain


def _without_offer(data: bytes) -> bytes:
    """Hides `Upgrade` from the parser, which would otherwise read what follows the head as another protocol.

    Clients that can speak HTTP/2 offer it with every request; a server that declines the offer ignores it.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return _OFFER.sub(_HIDDEN, head) + end + rest
