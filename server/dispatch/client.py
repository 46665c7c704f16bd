"""The server's end of the wire: sends requests, and puts each reply into the mailbox of its request.

Each process has one `Engine`, made by `app`; all its work runs on the event loop. Messages for unknown ids are dropped.
When the scheduler dies, every open request and every later one ends with engine_dead.
"""

import asyncio
from collections.abc import Callable

import msgspec
import zmq

from aerie.contracts import wire
from aerie.contracts.errors import AerieError, EngineDead
from aerie.contracts.messages import (
    Abort,
    Batch,
    Failed,
    Finished,
    Generate,
    Ready,
    Snapshot,
    Stop,
    Tokens,
    ToScheduler,
    ToServer,
)
from aerie.server.dispatch.mailbox import Mailbox

LIVENESS_SECONDS = 0.2
_LOST = "the scheduler process ended unexpectedly; the request cannot be finished"
_NEVER_STARTED = "the scheduler process ended before the model was ready; its own message says why"


class Engine:
    """`scheduler_alive` says whether the scheduler process still runs; it is called five times a second."""

    def __init__(self, address: str, scheduler_alive: Callable[[], bool]) -> None:
        self._address = address
        self._scheduler_alive = scheduler_alive
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._mailboxes: dict[str, Mailbox] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.ready: Ready | None = None
        self.snapshot: Snapshot | None = None
        self.on_snapshot: Callable[[Snapshot], None] | None = None
        """Called with every snapshot."""
        self.death: EngineDead | None = None
        self.became_ready = asyncio.Event()
        self.died = asyncio.Event()

    async def start(self) -> None:
        self._socket = wire.bind(self._context, self._address)
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._receive)
        self._tasks = [asyncio.create_task(self._watch())]
        self._receive()

    async def close(self) -> None:
        """Tells the scheduler to end, and closes the socket."""
        if self.death is None:
            self._send(Stop())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._loop.remove_reader(self._descriptor)
        self._socket.close()
        self._context.term()

    def open(self, requests: list[Generate]) -> Mailbox:
        """Sends the requests. Raises EngineDead."""
        if self.death is not None:
            raise self.death
        mailbox = Mailbox([request.id for request in requests])
        for request in requests:
            self._mailboxes[request.id] = mailbox
            self._send(request)
        return mailbox

    def abort(self, id: str) -> None:
        """Asks the scheduler to end a request; its ending still arrives."""
        if id in self._mailboxes:
            self._send(Abort(id=id))

    def drop(self, mailbox: Mailbox) -> None:
        """Forgets a mailbox, and aborts its requests that are still open. Safe to call twice."""
        for id in list(mailbox.open):
            if self._mailboxes.pop(id, None) is not None:
                self._send(Abort(id=id))
        mailbox.open.clear()

    def fail_all(self, error: AerieError) -> None:
        """Ends every open request with this error, and aborts it."""
        for id in list(self._mailboxes):
            self._send(Abort(id=id))
            failed = Failed(id=id, code=error.code or error.kind, message=error.message, status=error.status)
            self._route(failed)

    def _send(self, message: ToScheduler) -> None:
        if self.death is not None:
            return
        try:
            self._socket.send(wire.encode(message), zmq.NOBLOCK)
        except zmq.Again:  # the queue is unbounded, so this means that no peer is connected
            if not isinstance(message, Stop):
                self._die("the scheduler closed its connection; the request cannot be finished")
            return
        # A send may consume the descriptor's edge for messages that arrived meanwhile.
        self._loop.call_soon(self._receive)

    def _receive(self) -> None:
        """Takes all waiting frames: ZeroMQ's descriptor is edge-triggered and signals only the first."""
        while not self._socket.closed:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = wire.decode_to_server(frame)
            except msgspec.DecodeError as error:
                self._die(f"the scheduler sent an invalid message ({error}); the request cannot be finished")
                return
            self._handle(message)

    def _handle(self, message: ToServer) -> None:
        match message:
            case Batch():
                for part in message.messages:
                    self._handle(part)
            case Ready():
                self.ready = message
                self.became_ready.set()
            case Snapshot():
                self.snapshot = message
                if self.on_snapshot is not None:
                    self.on_snapshot(message)
            case Failed(code=EngineDead.code):
                self._die(message.message)  # fails all requests, so that none hears of it before /health does
            case Tokens() | Finished() | Failed():
                self._route(message)

    def _route(self, message: Tokens | Finished | Failed) -> None:
        ending = not isinstance(message, Tokens)
        mailbox = self._mailboxes.pop(message.id, None) if ending else self._mailboxes.get(message.id)
        if mailbox is not None:
            mailbox.put(message)

    async def _watch(self) -> None:
        while self.death is None:
            await asyncio.sleep(LIVENESS_SECONDS)
            self._receive()
            if not self._scheduler_alive():
                self._die(_LOST if self.ready is not None else _NEVER_STARTED)

    def _die(self, reason: str) -> None:
        if self.death is not None:
            return
        self.death = EngineDead(reason)
        self.died.set()
        self.fail_all(self.death)
