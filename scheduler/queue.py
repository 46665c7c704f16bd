"""The waiting requests: who came first, who needs the least, and whose time is up.

Requests that lack an edit slot are set aside, so that they hold up no others, and return when one is free.

Used by the policy (order) and the loop (deadlines). A preempted request returns to its place by arrival. Invariant: a
request is in the queue iff its phase is WAITING.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from aerie.contracts.errors import DeadlineExceeded, QueueTimeout
from aerie.scheduler.request import Phase, Request


class Queue:
    def __init__(self) -> None:
        self._waiting: dict[int, Request] = {}
        self._aside: dict[int, Request] = {}
        # Entries of the heaps count only while their request waits; stale ones are dropped when they reach the top.
        self._by_arrival: list[int] = []
        self._by_length: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._aside)

    def push(self, request: Request) -> None:
        assert request.phase is Phase.WAITING and request.number not in self._waiting
        self._waiting[request.number] = request
        heapq.heappush(self._by_arrival, request.number)
        heapq.heappush(self._by_length, (len(request.tokens), request.number))

    def remove(self, request: Request) -> None:
        del (self._aside if request.number in self._aside else self._waiting)[request.number]

    def set_aside(self, request: Request) -> None:
        """`first` and `shortest` pass over the request until it returns."""
        self._aside[request.number] = self._waiting.pop(request.number)

    def bring_back(self, count: int) -> None:
        """Returns the `count` oldest of those set aside to their places."""
        for number in sorted(self._aside)[:count]:
            self.push(self._aside.pop(number))

    def first(self) -> Request | None:
        """The request that has waited longest."""
        heap = self._by_arrival
        while heap and heap[0] not in self._waiting:
            heapq.heappop(heap)
        return self._waiting[heap[0]] if heap else None

    def shortest(self) -> Request | None:
        """The request with the least to compute."""
        heap = self._by_length
        while heap:
            length, number = heap[0]
            request = self._waiting.get(number)
            # A request that was preempted has grown since its first entry.
            if request is not None and len(request.tokens) == length:
                return request
            heapq.heappop(heap)
        return None


@dataclass(frozen=True, slots=True, order=True)
class _Deadline:
    at: float
    number: int
    total: bool


class Deadlines:
    """When each request must be answered. Entries of requests that ended in time are dropped at their deadline."""

    def __init__(self) -> None:
        self._heap: list[_Deadline] = []
        self._requests: dict[int, Request] = {}

    def add(self, request: Request) -> None:
        message = request.message
        for at, total in ((message.queue_deadline, False), (message.deadline, True)):
            if at is not None:
                self._requests[request.number] = request
                heapq.heappush(self._heap, _Deadline(at, request.number, total))

    def forget(self, request: Request) -> None:
        """The request has ended; its entries in the heap are stale."""
        self._requests.pop(request.number, None)

    def expired(
        self, now: float, claim: Callable[[Request], bool]
    ) -> list[tuple[Request, DeadlineExceeded | QueueTimeout]]:
        """Requests past their deadline, each with an error that says which deadline.

        `claim` gives a waiting request its row and pages if both are free. Such a request waits only for its prefill,
        so it stays.
        """
        late: list[tuple[Request, DeadlineExceeded | QueueTimeout]] = []
        while self._heap and self._heap[0].at <= now:
            deadline = heapq.heappop(self._heap)
            request = self._requests.get(deadline.number)
            if request is None:
                continue
            if not deadline.total and (request.tally.admitted_at is not None or claim(request)):
                continue
            self.forget(request)
            waited = f"{now - request.arrived:.1f} s"
            error = (
                DeadlineExceeded(
                    f"the request was not done after {waited}; raise limits.total_seconds or ask for fewer tokens"
                )
                if deadline.total
                else QueueTimeout(
                    f"the request waited {waited} and no row, no edit slot or too few KV pages are free; "
                    "the server is overloaded, try again later"
                )
            )
            late.append((request, error))
        return late
