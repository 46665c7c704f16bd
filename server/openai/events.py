"""Answers as server-sent events. Every stream ends with `[DONE]`, after its last event or after an error."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from aerie.contracts.errors import AerieError
from aerie.server.http.connection import CallerGone, while_connected
from aerie.server.openai.generation import Generation, News

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"

logger = logging.getLogger("aerie.server")


class Encoder(Protocol):
    """Writes one stream's events. Each method returns whole events, or nothing."""

    def opening(self) -> bytes:
        """What precedes the answer."""

    def news(self, news: News) -> bytes: ...

    def ending(self) -> bytes:
        """What follows a good answer."""

    def failure(self, error: AerieError) -> bytes:
        """What ends a stream that cannot go on; replaces `ending`."""


class EventStream(Response):
    """Sends the news of a generation, `first` and then `rest`, and closes the generation at the end."""

    media_type = "text/event-stream"

    def __init__(
        self, generation: Generation, encoder: Encoder, first: News, rest: AsyncIterator[News], cut: asyncio.Event
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._generation = generation
        self._encoder = encoder
        self._first = first
        self._rest = rest
        self._cut = cut

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._cut, self._send(send))
        except CallerGone:
            pass
        finally:
            self._generation.close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for events in self._events():
            if events:
                await send({"type": "http.response.body", "body": events, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            yield self._encoder.opening() + self._encoder.news(self._first)
            async for news in self._rest:
                yield self._encoder.news(news) if news else PING
            yield self._encoder.ending()
        except AerieError as error:
            yield self._encoder.failure(error)
        except Exception:  # our bug; the headers are sent, so only the stream can report it
            logger.exception("request %s failed in its stream", self._generation.id)
            yield self._encoder.failure(AerieError(f"internal error; the log has it under {self._generation.id}"))
        yield DONE
