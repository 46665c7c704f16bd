"""Request arrivals: a closed loop keeps a fixed number open, an open loop sends at random times whatever happens."""

import asyncio
import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import aiohttp

from aerie.bench.loads.client import Endpoint, converse, open_session
from aerie.bench.loads.workloads import Conversation
from aerie.bench.measured import Measured, Window

Progress = Callable[[int], None]
"""Called with the number of conversations that have ended."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much load: conversations in all, of which the first `warm_up` are not counted, and the least seconds of the
    window, for which more conversations are taken. A load ends where there are no more.
    """

    warm_up: int
    count: int = sys.maxsize
    seconds: float = 0.0


async def closed_loop(
    at: Endpoint, talks: Iterable[Conversation], *, concurrency: int, size: Size, seed: int, progress: Progress
) -> tuple[list[Measured], Window]:
    """Keeps `concurrency` conversations open until the load has its size."""
    left = enumerate(talks)
    results: list[Measured] = []
    bounds = _Bounds(size, progress)

    async def place(session: aiohttp.ClientSession) -> None:
        while not bounds.reached and (numbered := next(left, None)):
            number, talk = numbered
            bounds.sent(number)
            results.extend(await converse(session, at, talk, seed=seed + number))
            bounds.ended()

    async with open_session() as session:
        await asyncio.gather(*(place(session) for _ in range(concurrency)))
    return results, bounds.window(results)


async def open_loop(
    at: Endpoint,
    talks: Iterable[Conversation],
    *,
    rate: float,
    burstiness: float,
    size: Size,
    seed: int,
    progress: Progress,
) -> tuple[list[Measured], Window]:
    """Begins conversations at `rate` per second; the gaps are Gamma distributed with shape `burstiness`: 1 is a Poisson
    process, less is bursty.
    """
    chosen = random.Random(seed)
    results: list[Measured] = []
    bounds = _Bounds(size, progress)

    async def send(session: aiohttp.ClientSession, number: int, talk: Conversation) -> None:
        results.extend(await converse(session, at, talk, seed=seed + number))
        bounds.ended()

    async with open_session() as session, asyncio.TaskGroup() as open_ones:
        due = time.monotonic()
        for number, talk in enumerate(talks):
            if bounds.reached:
                break
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            bounds.sent(number)
            open_ones.create_task(send(session, number, talk))
            due += chosen.gammavariate(burstiness, 1 / (rate * burstiness))
    return results, bounds.window(results)


class _Bounds:
    """Tracks the bounds of the steady window."""

    def __init__(self, size: Size, progress: Progress) -> None:
        self._size = size
        self._progress = progress
        self._sent = self._ended = 0
        self._begin = 0.0

    @property
    def reached(self) -> bool:
        """Whether the load has its size."""
        return self._sent >= self._size.count and time.monotonic() - self._begin >= self._size.seconds

    def sent(self, number: int) -> None:
        self._sent = number + 1
        if number == self._size.warm_up:
            self._begin = time.monotonic()

    def ended(self) -> None:
        self._ended += 1
        self._progress(self._ended)

    def window(self, results: Sequence[Measured]) -> Window:
        """The window, which includes the last request's start."""
        return Window(self._begin, math.nextafter(max(one.sent for one in results), math.inf))
