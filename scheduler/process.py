"""The scheduler as a process: a socket to the server on one side, a lane on the other.

Started by the composition root, which builds the lane. Ends when the server sends Stop, when the parent process dies,
or, with a non-zero exit code, when the lane does. Ignores SIGINT and SIGTERM: a Ctrl-C reaches every process of the
group, but the server is the one that drains, then sends Stop.
"""

import gc
import logging
import os
import signal
import time
from collections.abc import Iterable

import msgspec
import zmq

from aerie.contracts import wire
from aerie.contracts.config import Config
from aerie.contracts.errors import EngineDead
from aerie.contracts.messages import Batch, Ready, Stop
from aerie.contracts.step import Lane
from aerie.scheduler.loop import Reply, Scheduler

PARENT_SECONDS = 0.5
"""Seconds between checks that the parent lives."""

logger = logging.getLogger(__name__)


def run(address: str, lane: Lane, config: Config, *, parent: int | None = None) -> int:
    """Serves the socket at `address` until Stop arrives; returns the exit code. Closes the lane.

    The scheduler ends with the process `parent`, by default its parent at the call.
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
        # Objects that live now live to the end: collections in the loop need not walk them.
        gc.collect()
        gc.freeze()
        try:
            while self._receive() and self._parent_lives():
                self._say(scheduler.iterate())
                if scheduler.dead is not None:
                    logger.error("the lane is gone: %s", scheduler.dead, exc_info=scheduler.dead.__cause__)
                    return 1
        except Exception as error:  # a bug of ours: no client is left waiting, and the log has the traceback
            logger.exception("the scheduler failed")
            scheduler.fail_all(EngineDead(f"the scheduler failed: {type(error).__name__}; restart the server"))
            self._say(scheduler.take_replies())
            return 1
        scheduler.fail_all(EngineDead("the server is stopping; send the request again later", code="stopping"))
        self._say(scheduler.take_replies())
        return 0

    def _receive(self) -> bool:
        """Takes in the messages that have arrived, waiting for one when idle; False after Stop."""
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
                logger.error("dropped an invalid message: %s", error)
                continue
            if isinstance(message, Stop):
                return False
            self._scheduler.submit(message)

    def _parent_lives(self) -> bool:
        """A killed parent cannot send Stop; another process adopts its children."""
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
