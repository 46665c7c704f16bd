"""Who goes into the next step.

Asked by the loop once a turn. One kind a step; while rows decode, at most one prefill step lies between two decode
steps. Half of a prefill step goes to the request that came first, so that nobody starves; the rest goes to those with
the least left, so that a short prompt does not wait for a long one. While other requests are open, long prompts
together get no more than `long_prefill_threshold` of it, so that nobody waits long for such a step. Once the first in
line is older than all who run their prompts, nobody overtakes it for want of pages. Raises OutOfPages before anything
is changed.
"""

import sys
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
        self._long = config.long_prefill_threshold or config.prefill_chunk
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
        rows, queue = self._rows, self._queue
        crowded = rows.running + len(queue) > 1
        shares = _Shares(self._chunk, long=self._long if crowded else self._chunk)
        started: list[Request] = []
        waiting = queue.first()
        oldest = min(rows.prefilling, key=lambda request: request.number, default=None)
        if waiting is not None and (oldest is None or waiting.number < oldest.number):
            if self._admit(waiting):
                started.append(waiting)
                oldest = waiting
            else:
                waiting = None
        if oldest is None:
            return None
        shares.give_half(oldest)
        while shares.budget:
            waiting = waiting and queue.shortest()
            open_ones = (request for request in rows.prefilling if shares.room(request))
            nearest = min(open_ones, key=shares.left, default=None)
            if waiting is not None and (nearest is None or len(waiting.tokens) < shares.left(nearest)):
                if shares.room(waiting) and self._admit(waiting):
                    started.append(waiting)
                    shares.give(waiting)
                else:
                    waiting = None
            elif nearest is not None:
                shares.give(nearest)
            else:
                break
        return PrefillStep(list(shares.counts), list(shares.counts.values()), started)

    def _admit(self, request: Request) -> bool:
        """Gives the request a row, its cached prefix and its pages, or leaves it in the queue."""
        rows = self._rows
        attempt = (request.number, self._memory.released)
        if rows.full or self._refused == attempt:
            return False
        load = min(rows.running + len(self._queue), rows.count)  # as soon as all who wait are in
        follows = self._drafting.follows(request.message, load)
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


class _Shares:
    """What each request gets of a prefill step's `budget`; prompts with more than `long` left get that together."""

    def __init__(self, budget: int, *, long: int) -> None:
        self.budget = budget
        self.counts: dict[Request, int] = {}
        self._threshold = self._long = long

    def left(self, request: Request) -> int:
        """Prompt tokens that this step does not read yet."""
        return request.remaining - self.counts.get(request, 0)

    def room(self, request: Request) -> int:
        """The most that the request may still get."""
        return min(self.left(request), self.budget, self._pot(request))

    def give(self, request: Request, most: int = sys.maxsize) -> None:
        given = min(most, self.room(request))
        self.counts[request] = self.counts.get(request, 0) + given
        self.budget -= given
        if self._is_long(request):
            self._long -= given

    def give_half(self, request: Request) -> None:
        """At most half of what there is for prompts of its kind."""
        self.give(request, max(self._pot(request) // 2, 1))

    def _pot(self, request: Request) -> int:
        return min(self._long, self.budget) if self._is_long(request) else self.budget

    def _is_long(self, request: Request) -> bool:
        return request.remaining > self._threshold
