"""uvicorn's fast HTTP parser with what it lacks: a bound on headers, errors in the shape of all others, and bodies of
requests that offer an upgrade.
"""

import re

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from contracts.errors import BadRequest
from server.problems import error_data

MAX_HEAD_BYTES = 64 << 10
"""Of a request line and its headers together."""
_OFFER = re.compile(rb"^upgrade(?=:)", re.IGNORECASE | re.MULTILINE)
_HIDDEN = b"ignored"
"""As long as what it replaces."""


class BoundedHttp(HttpToolsProtocol):
    _head_bytes = 0
    _in_head = True
    _advanced = False
    """Whether the piece at hand completed a head or a body; what is left of it after that is not counted."""

    def data_received(self, data: bytes) -> None:
        self._advanced = False
        super().data_received(_without_offer(data) if self._in_head else data)
        self._head_bytes = self._head_bytes + len(data) if self._in_head and not self._advanced else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def on_headers_complete(self) -> None:
        self._in_head, self._advanced = False, True
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse_head()
            raise ValueError("the head is too large")  # the parser stops here
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._advanced = True, True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self.transport.is_closing():
            return
        body = msgspec.json.encode(error_data(BadRequest(msg, code="malformed_request")))
        head = (
            "HTTP/1.1 400 Bad Request\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _refuse_head(self) -> None:
        self.send_400_response(f"the request's head has more than {MAX_HEAD_BYTES} bytes")


def _without_offer(data: bytes) -> bytes:
    """The data with `Upgrade` hidden from the parser, which would take what follows the head for another protocol.

    Clients that can speak HTTP/2 offer it so with every request; a server that does not take the offer ignores it.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return _OFFER.sub(_HIDDEN, head) + end + rest
