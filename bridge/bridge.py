"""Connects the front end's messages to SGLang's engine: requests in; tokens and exactly one ending per request out.

Run by `process`, on the event loop of SGLang's engine. Invariant, as for Aerie's scheduler: every `Generate` gets
exactly one Finished or Failed, whatever happens to the engine.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import zmq.asyncio

from aerie.bridge.parameters import check_parameters
from aerie.bridge.stream import TokenStream, failed
from aerie.bridge.tally import Load, Tally
from aerie.contracts import wire
from aerie.contracts.errors import AerieError, BadRequest, DeadlineExceeded, EngineDead, QueueTimeout
from aerie.contracts.messages import Abort, Batch, Failed, Finished, Generate, Ready, Snapshot, Stop, Tokens

LOOK_SECONDS = 0.2
"""Interval of the checks for deaths, aborts and deadlines."""
SNAPSHOT_SECONDS = 1.0
FAREWELL_SECONDS = 1.0
"""How long sending the last messages may take."""

logger = logging.getLogger("aerie.sglang")


class Backend(Protocol):
    """SGLang's engine as the bridge sees it."""

    depth: int
    """The most drafted tokens that a step can commit; 0 without a head."""
    greedy_only: bool
    salts: bool

    def generate(self, request: Generate) -> AsyncIterator[dict[str, Any]]:
        """Yields outputs, each with all tokens so far. Raises ValueError for requests that the engine rejects."""

    def abort(self, id: str) -> None:
        """Asks the engine to end a request; ignores unknown ids."""

    async def load(self) -> Load: ...

    def death(self) -> str | None:
        """Why the engine died; None while it runs."""


@dataclass(slots=True)
class _Open:
    request: Generate
    stream: TokenStream
    cause: AerieError | None = None
    """Why the request is being ended early."""
    leaving: bool = False
    task: "asyncio.Task[None] | None" = field(default=None)


class Bridge:
    """Stops when the process `parent` ends."""

    def __init__(self, backend: Backend, socket: "zmq.asyncio.Socket", *, parent: int) -> None:
        self._backend = backend
        self._socket = socket
        self._parent = parent
        self._open: dict[str, _Open] = {}
        self._tally = Tally(backend.depth)
        self._outbox: list[Tokens | Finished | Failed | Snapshot] = []
        self._stirred = asyncio.Event()

    async def serve(self, ready: Ready) -> int:
        """Serves until a Stop or the engine's death; returns the exit code."""
        await self._socket.send(wire.encode(ready))
        endings = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch())]
        others = [asyncio.create_task(self._send()), asyncio.create_task(self._tell())]
        death: EngineDead | None
        try:
            done, _ = await asyncio.wait([*endings, *others], return_when=asyncio.FIRST_COMPLETED)
            death = done.pop().result()
        except Exception as error:  # our bug: no request is left waiting, and the log has the traceback
            logger.exception("the bridge failed")
            death = EngineDead(f"the bridge to SGLang's engine failed: {type(error).__name__}; restart the server")
        finally:
            for task in (*endings, *others):
                task.cancel()
            await asyncio.gather(*endings, *others, return_exceptions=True)
        self._fail_all(death or EngineDead("the server is stopping; send the request again later", code="stopping"))
        await self._flush()
        if death is not None:
            logger.error("%s", death.message)
        return 0 if death is None else 1

    async def _receive(self) -> None:
        """Receives messages until Stop."""
        while True:
            frame = await self._socket.recv()
            try:
                message = wire.decode_to_scheduler(frame)
            except msgspec.DecodeError as error:
                logger.error("dropped an invalid message: %s", error)
                continue
            match message:
                case Stop():
                    return
                case Generate():
                    self._begin(message)
                case Abort():
                    self._leave(message.id, None)

    async def _watch(self) -> EngineDead | None:
        """Enforces deadlines and repeats aborts until the engine or the parent dies."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            reason = self._backend.death()
            if reason is not None:
                return EngineDead(f"SGLang's engine died: {reason}; the request cannot be finished")
            if os.getppid() != self._parent:
                return None
            now = time.monotonic()
            for id, one in self._open.items():
                self._look(id, one, now)

    def _look(self, id: str, one: _Open, now: float) -> None:
        request = one.request
        if one.leaving:
            self._backend.abort(id)  # the engine may not have known the id the first time
        elif request.deadline is not None and now >= request.deadline:
            self._leave(id, DeadlineExceeded("the request ran past its deadline (limits.total_seconds)"))
        elif request.queue_deadline is not None and now >= request.queue_deadline and not one.stream.started:
            message = "the request had no token by its deadline (limits.queue_seconds); try again later"
            self._leave(id, QueueTimeout(message))

    async def _tell(self) -> None:
        """Sends a Snapshot once a second."""
        while True:
            self._say(self._tally.snapshot(await self._backend.load(), still_open=len(self._open)))
            await asyncio.sleep(SNAPSHOT_SECONDS)

    async def _send(self) -> None:
        """Sends messages in order: all messages of one round of the event loop in one frame."""
        while True:
            await self._stirred.wait()
            await self._flush()

    async def _flush(self) -> None:
        self._stirred.clear()
        messages, self._outbox = self._outbox, []
        if messages:
            async with asyncio.timeout(FAREWELL_SECONDS):  # wait_for of Python 3.11 may swallow the cancel at the end
                await self._socket.send(wire.encode(Batch(messages=messages)))

    def _say(self, message: Tokens | Finished | Failed | Snapshot) -> None:
        self._outbox.append(message)
        self._stirred.set()

    def _begin(self, request: Generate) -> None:
        assert request.id not in self._open, f"id {request.id} is open already; ids are the server's to keep apart"
        one = _Open(request, TokenStream(request, depth=self._backend.depth))
        self._open[request.id] = one
        one.task = asyncio.create_task(self._forward(request, one))

    async def _forward(self, request: Generate, one: _Open) -> None:
        stream, backend = one.stream, self._backend
        ending: Finished | Failed | None = None
        try:
            check_parameters(request, drafts=backend.depth > 0, greedy_only=backend.greedy_only, salts=backend.salts)
            async for output in backend.generate(request):
                for tokens in stream.take(output):
                    self._tally.commit(tokens)
                    self._say(tokens)
            ending = stream.ended
        except AerieError as error:
            ending = failed(request.id, error)
        except ValueError as error:  # how SGLang refuses a request
            ending = failed(request.id, BadRequest(f"SGLang's engine refuses the request: {error}"))
        except Exception as error:  # a fault of one request; the log has the traceback
            logger.exception("a request failed in SGLang's engine")
            ending = failed(request.id, AerieError(f"the engine failed on the request: {type(error).__name__}"))
        lost = failed(request.id, AerieError("SGLang's engine left the request without an ending", code="lost"))
        self._end(request.id, ending or lost)

    def _leave(self, id: str, cause: AerieError | None) -> None:
        """Asks the engine to end a request, if it is open; `cause` is the error for its caller."""
        one = self._open.get(id)
        if one is not None and not one.leaving:
            one.leaving, one.cause = True, cause
            self._backend.abort(id)

    def _end(self, id: str, last: Finished | Failed) -> None:
        one = self._open.pop(id, None)
        if one is None:
            return
        self._tally.end(one.stream.usage)
        self._say(last if one.cause is None else failed(id, one.cause))

    def _fail_all(self, error: EngineDead) -> None:
        for id, one in list(self._open.items()):
            if one.task is not None:
                one.task.cancel()
            self._end(id, failed(id, error))
