"""The scheduler as a process: a socket to the server on one side, a lane on the other.

Started by the composition root, which builds the lane. Ends when the server says Stop, when the parent process dies,
or, with a code that is not zero, when the lane does. SIGINT and SIGTERM are ignored: a Ctrl-C reaches every process of
the group, but it is the server that drains, then sends Stop.
"""

import gc
import logging
import os
import signal
import time
from collections.abc import Iterable

import msgspec
import zmq

from contracts import wire
from contracts.config import Config
from contracts.errors import EngineDead
from contracts.messages import Batch, Ready, Stop
from contracts.step import Lane
from scheduler.loop import Reply, Scheduler

PARENT_SECONDS = 0.5
"""How often the parent is looked at."""

logger = logging.getLogger(__name__)


def run(address: str, lane: Lane, config: Config, *, parent: int | None = None) -> int:
    """Serves the socket at `address` until told to stop; returns the exit code. Closes the lane.

    `parent` is the process to live with; by default the one that is the parent now.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = os.getppid() if parent is None else parent
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = wire.connect(context, address)
    try:
        scheduler = Scheduler(lane, config)
        return _Process(socket, scheduler, parent).serve()
    finally:
        lane.close()
        socket.close()
        context.term()


class _Process:
    def __init__(self, socket: "zmq.Socket[bytes]", scheduler: Scheduler, parent: int) -> None:
        self._socket = socket
        self._scheduler = scheduler
        self._parent = parent
        self._stopping = False
        self._look_at = 0.0

    def serve(self) -> int:
        scheduler = self._scheduler
        self._send(scheduler.ready())
        # What lives now lives on: collections in the loop need not walk it.
        gc.collect()
        gc.freeze()
        try:
            while self._receive() and self._parent_lives():
                self._say(scheduler.turn())
                if scheduler.dead is not None:
                    logger.error("the lane is gone: %s", scheduler.dead, exc_info=scheduler.dead.__cause__)
                    return 1
        except Exception as error:  # our bug: nobody is left waiting, and the log has the traceback
            logger.exception("the scheduler failed")
            scheduler.fail_all(EngineDead(f"the scheduler failed: {type(error).__name__}; restart the server"))
            self._say(scheduler.take_replies())
            return 1
        scheduler.fail_all(EngineDead("the server is stopping; send the request again later", code="stopping"))
        self._say(scheduler.take_replies())
        return 0

    def _receive(self) -> bool:
        """Takes in what has arrived, waiting for it at idle; False once told to stop."""
        if self._scheduler.idle and not self._socket.poll(int(PARENT_SECONDS * 1000)):
            return True
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return True
            try:
                message = wire.decode_to_scheduler(frame)
            except msgspec.DecodeError as error:
                logger.error("dropped a frame that is no message: %s", error)
                continue
            if isinstance(message, Stop):
                return False
            self._scheduler.submit(message)

    def _parent_lives(self) -> bool:
        """A parent that was killed has sent no Stop; its children are adopted by another process."""
        now = time.monotonic()
        if now < self._look_at:
            return True
        self._look_at = now + PARENT_SECONDS
        return os.getppid() == self._parent

    def _say(self, replies: Iterable[Reply]) -> None:
        messages = list(replies)
        if messages:
            self._send(Batch(messages=messages))

    def _send(self, message: Batch | Ready) -> None:
        self._socket.send(wire.encode(message))
