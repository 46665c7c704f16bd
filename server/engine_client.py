"""The server's end of the wire: sends requests, hands each answer to whoever waits for its id, and notices a dead scheduler."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec
import zmq
import zmq.asyncio

from contracts.errors import AerieError, EngineDead
from contracts.messages import Abort, Batch, Failed, Finished, Generate, Ready, Snapshot, Stop, Tokens, ToServer
from contracts.wire import bind, decode_to_server, encode

_LOOK_SECONDS = 0.2
"""How often a silent scheduler is looked at."""

Event = Tokens | Finished


class EngineClient:
    """One per server. Every stream ends: by Finished, or by an error raised to its reader."""

    def __init__(
        self, address: str, *, alive: Callable[[], bool], on_snapshot: Callable[[Snapshot], None] = lambda _: None
    ) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = bind(self._context, address)
        self._alive = alive
        self._on_snapshot = on_snapshot
        self._open: dict[str, asyncio.Queue[Event | AerieError]] = {}
        self._reader: asyncio.Task[None] | None = None
        self.ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self.dead: EngineDead | None = None
        self.on_death: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._reader = asyncio.create_task(self._read())

    @property
    def running(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    async def generate(self, request: Generate) -> AsyncIterator[Event]:
        """Tokens, then Finished. Raises the error that ended the request instead. Leaving early aborts it."""
        if self.dead is not None:
            raise self.dead
        events: asyncio.Queue[Event | AerieError] = asyncio.Queue()
        self._open[request.id] = events
        ended = False
        try:
            await self._socket.send(encode(request))
            while not ended:
                event = await events.get()
                ended = not isinstance(event, Tokens)
                if isinstance(event, AerieError):
                    raise event
                yield event
        finally:
            self._open.pop(request.id, None)
            if not ended and self.dead is None:
                await self._socket.send(encode(Abort(id=request.id)))

    async def stop(self) -> None:
        """Tells the scheduler to end and closes the wire."""
        if self.dead is None:
            with contextlib.suppress(zmq.ZMQError):
                await self._socket.send(encode(Stop()), flags=zmq.NOBLOCK)
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
        self._socket.close()
        self._context.term()

    def fail_all(self, error: AerieError) -> None:
        """Ends every open stream with this error."""
        for events in self._open.values():
            events.put_nowait(error)

    async def _read(self) -> None:
        while True:
            if await self._socket.poll(_LOOK_SECONDS * 1000):
                self._take(await self._socket.recv())
            elif not self._alive():
                self._die()
                return

    def _take(self, frame: bytes) -> None:
        try:
            message = decode_to_server(frame)
        except msgspec.ValidationError as error:
            raise AssertionError(f"the scheduler sent no message: {error}") from error
        for one in message.messages if isinstance(message, Batch) else (message,):
            self._deliver(one)

    def _deliver(self, message: ToServer) -> None:
        if isinstance(message, Ready):
            if not self.ready.done():
                self.ready.set_result(message)
        elif isinstance(message, Snapshot):
            self._on_snapshot(message)
        elif isinstance(message, Failed):
            self._put(message.id, _error(message))
        elif isinstance(message, Tokens | Finished):
            self._put(message.id, message)

    def _put(self, request_id: str, event: Event | AerieError) -> None:
        """Answers for an id that nobody waits for any more are dropped."""
        if (events := self._open.get(request_id)) is not None:
            events.put_nowait(event)

    def _die(self) -> None:
        self.dead = EngineDead("the engine ended unexpectedly; the request is lost, and the server is going down")
        self.fail_all(self.dead)
        if not self.ready.done():
            self.ready.set_exception(self.dead)
        self.on_death()


def _error(message: Failed) -> AerieError:
    error = AerieError(message.message, code=message.code)
    error.status = message.status
    error.kind = "invalid_request_error" if 400 <= message.status < 500 else "server_error"
    return error
