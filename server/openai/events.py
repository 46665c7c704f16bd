"""Answers as server-sent events. Every stream ends with `[DONE]`, after its last chunk or after an error."""

import asyncio
import logging
from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from aerie.contracts.errors import AerieError
from aerie.server.http.connection import CallerGone, while_connected
from aerie.server.http.problems import error_data
from aerie.server.openai.answers import Answers
from aerie.server.openai.choice import Choice
from aerie.server.openai.generation import Generation, News

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"

logger = logging.getLogger("aerie.server")


class EventStream(Response):
    """Sends the news of a generation, `first` and then `rest`, and closes the generation at the end."""

    media_type = "text/event-stream"

    def __init__(
        self, generation: Generation, answers: Answers, first: News, rest: AsyncIterator[News], cut: asyncio.Event
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._generation = generation
        self._answers = answers
        self._first = first
        self._rest = rest
        self._cut = cut
        self._finished: set[int] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._cut, self._send(send))
        except CallerGone:
            pass
        finally:
            self._generation.close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for frames in self._frames():
            await send({"type": "http.response.body", "body": frames, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _frames(self) -> AsyncIterator[bytes]:
        try:
            openings = [self._answers.opening(choice) for choice in self._generation.choices]
            yield b"".join(_frame(opening) for opening in openings if opening is not None) + self._framed(self._first)
            async for news in self._rest:
                frames = self._framed(news) if news else PING
                if frames:
                    yield frames
            if self._answers.wanted.usage:
                yield _frame(self._answers.usage_chunk(self._generation.usage(), self._generation.choices))
        except AerieError as error:
            yield _frame(error_data(error))
        except Exception:  # our bug; the headers are sent, so only the stream can report it
            logger.exception("request %s failed in its stream", self._generation.id)
            yield _frame(error_data(AerieError(f"internal error; the log has it under {self._generation.id}")))
        yield DONE

    def _framed(self, news: News) -> bytes:
        frames = []
        for choice, delta in news:
            finish = choice.ended and choice.index not in self._finished
            if finish:
                self._finished.add(choice.index)
            if delta.text or finish or (delta.ids and self._answers.wanted.every_step):
                chunk = self._answers.chunk(choice, delta, finish=finish, so_far=self._choices)
                frames.append(_frame(chunk))
        return b"".join(frames)

    @property
    def _choices(self) -> list[Choice]:
        return self._generation.choices


def _frame(data: object) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"
