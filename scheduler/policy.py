"""Who goes into the next step.

Asked by the loop once a turn. One kind a step; while rows decode, at most one prefill step lies between two decode
steps. Half of a prefill step goes to the request that came first, so that nobody starves; the rest goes to those with
the least left, so that a short prompt does not wait for a long one. Once the first in line is older than all who run
their prompts, nobody overtakes it for want of pages. Raises OutOfPages before anything is changed.
"""

from dataclasses import dataclass

import numpy as np

from contracts.config import SchedulerConfig
from contracts.step import Bools, Ints, Longs
from scheduler.drafting import NO_DRAFT, Drafting, Shape
from scheduler.memory import Memory
from scheduler.queue import Queue
from scheduler.request import Phase, Request
from scheduler.rows import Rows


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """The next `counts[i]` prompt tokens of each request; `started` are those that got their row with this step."""

    requests: list[Request]
    counts: list[int]
    started: list[Request]


@dataclass(frozen=True, slots=True)
class DecodeStep:
    rows: Longs
    bounds: Ints
    nodes: Ints
    drafting: Bools
    shape: Shape


class Policy:
    """`lookups` and `hits` count prompt tokens looked up in the prefix cache and found there."""

    def __init__(self, config: SchedulerConfig, queue: Queue, rows: Rows, memory: Memory, drafting: Drafting) -> None:
        self._chunk = config.prefill_chunk
        self._queue = queue
        self._rows = rows
        self._memory = memory
        self._drafting = drafting
        self._prefilled_last = False
        self._refused: tuple[int, int] | None = None
        self._now = 0.0
        self.lookups = 0
        self.hits = 0
        self.preemptions = 0

    def next_step(self, now: float) -> PrefillStep | DecodeStep | None:
        """The step to launch now, None if there is none to launch before something settles or arrives."""
        self._now = now
        decodable = self._rows.decodable()
        prefill = None
        if not (self._prefilled_last and len(decodable)):
            prefill = self._prefill()
        if prefill is not None:
            self._prefilled_last = True
            return prefill
        if not len(decodable):
            return None
        decode = self._decode(decodable)
        self._prefilled_last = False
        return decode

    def preempt(self) -> None:
        """Sends the youngest running request back to the queue; its tokens become a prompt to recompute."""
        youngest = self._rows.youngest()
        assert self._rows.running > 1, "one row alone is out of pages, though admission checked that it fits"
        self._rows.vacate(youngest, Phase.WAITING)
        youngest.tally.preemptions += 1
        self.preemptions += 1
        self._queue.push(youngest)

    def _decode(self, rows: Longs) -> DecodeStep:
        columns = self._rows
        shape = self._drafting.shape(len(rows))
        bounds = columns.bounds_of(rows)
        self._memory.cover(rows, bounds)
        if self._drafting.gives_up(shape):
            columns.become_plain()
        drafting = columns.drafting[rows]
        if not shape.drafts or not np.count_nonzero(drafting):
            return DecodeStep(rows, bounds, np.ones(len(rows), dtype=np.int32), drafting, NO_DRAFT)
        allowed = np.minimum(columns.max_nodes[rows], np.int32(shape.nodes))
        nodes = np.where(drafting, allowed, np.int32(1))
        depth = min(shape.depth, int(nodes.max()) - 1)
        return DecodeStep(rows, bounds, nodes, drafting, Shape(depth, shape.topk, shape.nodes))

    def _prefill(self) -> PrefillStep | None:
        """Shares one step's tokens out; admits who gets some."""
        shares: dict[Request, int] = {}
        started: list[Request] = []
        budget = self._chunk

        def give(request: Request, most: int) -> None:
            nonlocal budget
            given = min(most, budget, request.remaining - shares.get(request, 0))
            shares[request] = shares.get(request, 0) + given
            budget -= given

        waiting = self._queue.first()
        oldest = min(self._rows.prefilling, key=lambda request: request.number, default=None)
        if waiting is not None and (oldest is None or waiting.number < oldest.number):
            if self._admit(waiting):
                started.append(waiting)
                oldest = waiting
            else:
                waiting = None
        if oldest is None:
            return None
        give(oldest, max(budget // 2, 1))
        while budget:
            waiting = waiting and self._queue.shortest()
            left = {request: request.remaining - shares.get(request, 0) for request in self._rows.prefilling}
            nearest = min((request for request in left if left[request]), key=lambda r: left[r], default=None)
            if waiting is not None and (nearest is None or len(waiting.tokens) < left[nearest]):
                if self._admit(waiting):
                    started.append(waiting)
                    give(waiting, budget)
                else:
                    waiting = None
            elif nearest is not None:
                give(nearest, budget)
            else:
                break
        return PrefillStep(list(shares), list(shares.values()), started)

    def _admit(self, request: Request) -> bool:
        """Gives the request a row, its cached prefix and its pages, or leaves it in the queue."""
        rows = self._rows
        attempt = (request.number, self._memory.released)
        if rows.full or self._refused == attempt:
            return False
        follows = self._drafting.follows(request.message, rows.running + 1)
        # A page for each row that decodes: without it the newcomer would be preempted at once.
        headroom = int(np.count_nonzero(rows.decoding))
        cached = rows.admit(request, drafting=follows, headroom=headroom)
        if cached is None:
            self._refused = attempt
            return False
        self._queue.remove(request)
        self.lookups += len(request.tokens)
        self.hits += cached
        if request.tally.admitted_at is None:
            request.tally.admitted_at = self._now
            request.tally.cached_tokens = cached
        return True
