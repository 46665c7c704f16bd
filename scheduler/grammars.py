"""Requests whose answers must match a grammar: they enter the queue once the lane has built it.

Called by the loop. Building takes milliseconds, or much longer for a large schema; no other request waits for it.
"""

from collections.abc import Callable, Sequence

from aerie.contracts.errors import BadRequest
from aerie.contracts.grammar import Preparing
from aerie.contracts.step import Bools, Longs
from aerie.scheduler.request import Request
from aerie.scheduler.stats import Stats

WAIT_SECONDS = 0.002
"""How long the loop waits for a grammar where it has nothing else to do."""


class Grammars:
    def __init__(self, lane: Preparing, enqueue: Callable[[Request], None], stats: Stats) -> None:
        self._lane = lane
        self._enqueue = enqueue
        self._stats = stats
        self._held: dict[int, Request] = {}
        """By number: requests whose grammar is being built."""

    @property
    def held(self) -> int:
        return len(self._held)

    def holds(self, request: Request) -> bool:
        return request.number in self._held

    def enter(self, request: Request) -> None:
        """Puts a new request into the queue, at once or when its grammar is there."""
        if request.message.grammar is None:
            self._enqueue(request)
            return
        self._held[request.number] = request
        self._lane.prepare(request.number, request.message.grammar)

    def collect(self, *, waits: bool) -> list[tuple[Request, BadRequest]]:
        """Enqueues what can begin; returns the requests whose grammar cannot be used, which are still held.

        Waits a little for a grammar if `waits`.
        """
        refused: list[tuple[Request, BadRequest]] = []
        if not self._held:
            return refused
        for built in self._lane.prepared(WAIT_SECONDS if waits else 0.0):
            self._stats.builds += not built.reused
            self._stats.reused += built.reused
            self._stats.build_seconds += built.seconds
            request = self._held.get(built.request)
            if request is not None and built.error is None:
                self._enqueue(self._held.pop(built.request))
            elif request is not None:
                refused.append((request, _unusable(f"it cannot be built: {built.error}")))
        return refused

    def drop(self, request: Request) -> bool:
        """Stops to hold a request that leaves; False if it was not held."""
        return self._held.pop(request.number, None) is not None

    def forget(self, request: Request) -> None:
        """The request has ended."""
        if request.message.grammar is not None:
            self._lane.forget(request.number)


def faulted(
    owners: Sequence[Request | None], rows: Longs, live: Bools, faults: dict[int, str]
) -> list[tuple[Request, BadRequest]]:
    """The requests that the lane gave up in a step, whose results are no longer `live` [rows of the step]."""
    given_up = []
    for place, why in faults.items():
        request = owners[rows[place]]
        if live[place] and request is not None:
            live[place] = False
            given_up.append((request, _unusable(why)))
    return given_up


def _unusable(why: str) -> BadRequest:
    return BadRequest(f"the answer's grammar cannot be used: {why}; make it simpler", code="invalid_grammar")
