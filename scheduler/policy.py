"""Who goes into the next step.

Called by the loop once an iteration. A step is of one kind. While rows decode, between two decode steps lie at most as
many prefill steps as the last decode step gave each row tokens: with one, drafts would end answers before other prompts
are read, and rows would stay empty while requests wait. `scheduler.shares` has the rules by which prompts share a
prefill step, and the bound on how long one waits. A request gets its row and pages together with its first tokens, so
it finds what earlier prompts left in the prefix cache. Once the first in the queue is older than all requests in
prefill, no other request overtakes it when pages lack. Raises OutOfPages before it changes anything.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from aerie.contracts.config import SchedulerConfig
from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.contracts.step import Ints, Longs
from aerie.scheduler.drafting import Drafting, may_draft
from aerie.scheduler.memory import Memory
from aerie.scheduler.planner.goodput import Goodput
from aerie.scheduler.planner.keeping import Asked
from aerie.scheduler.queue import Queue
from aerie.scheduler.recompute import Recompute
from aerie.scheduler.request import Phase, Request
from aerie.scheduler.rows import Rows
from aerie.scheduler.shares import LongPrompts, Shares
from aerie.scheduler.steps import DecodeStep, PrefillStep, plain_step

_NO_ROWS: Longs = np.zeros(0, dtype=np.int64)


class Policy:
    """`lookups` and `hits` count prompt tokens looked up in the prefix cache and found there."""

    def __init__(
        self,
        config: SchedulerConfig,
        queue: Queue,
        rows: Rows,
        memory: Memory,
        drafting: Drafting,
        goodput: Goodput | None = None,
    ) -> None:
        self._chunk = config.prefill_chunk
        self._threshold = config.long_prefill_threshold or config.prefill_chunk
        self._long = LongPrompts(budget=self._chunk, limit=config.long_prefill_chunk or self._threshold)
        self._queue = queue
        self._rows = rows
        self._memory = memory
        self._drafting = drafting
        self._goodput = goodput
        self._recompute = goodput and Recompute(rows, memory, goodput, most=self._threshold)
        self._read = 0
        """Prefill steps since the last decode step."""
        self._refused: tuple[int, int] | None = None
        self._now = 0.0
        self.lookups = 0
        self.hits = 0
        self.preemptions = 0

    def next_step(self, now: float) -> PrefillStep | DecodeStep | None:
        """The step to launch now; None if there is none until something settles or arrives."""
        self._now = now
        decodable = self._rows.decodable()
        prefill = None
        if not len(decodable) or self._may_read:
            if self._recompute and (request := self._recompute.next(decodable)) is not None:
                self._send_back(request)
                decodable = self._rows.decodable()
            prefill = self._prefill()
        if prefill is not None:
            self._read += 1
            return prefill
        if not len(decodable):
            return None
        decode = self._decode(decodable)
        self._read = 0
        return decode

    @property
    def _may_read(self) -> bool:
        """Whether a prefill step may come next though rows decode."""
        return self._read < max(round(self._rows.gained), 1)

    def enqueue(self, request: Request) -> None:
        """Adds a new request to the queue."""
        request.prefills_before = self._long.prefills
        self._queue.push(request)

    def claim(self, request: Request, now: float) -> bool:
        """Gives a waiting request its row and pages early; False if there are none for it."""
        self._now = now
        return self._admit(request)

    def preempt(self) -> None:
        """Sends the youngest running request back to the queue."""
        assert self._rows.running > 1, "one row alone is out of pages, though admission checked that it fits"
        self._send_back(self._rows.youngest())
        self.preemptions += 1

    def _send_back(self, request: Request) -> None:
        """The request's tokens become a prompt to recompute. What is in flight for it is void."""
        self._rows.vacate(request, Phase.WAITING)
        request.tally.preemptions += 1
        self._queue.push(request)

    def _decode(self, rows: Longs) -> DecodeStep:
        columns = self._rows
        bounds = columns.bounds_of(rows)
        self._memory.cover(rows, bounds)
        if self._goodput is not None:
            return self._planned(self._goodput, rows, bounds)
        shape = self._drafting.shape(len(rows))
        if self._drafting.gives_up(shape):
            columns.become_plain()
        drafting = columns.drafting[rows]
        if not shape.drafts or not np.count_nonzero(drafting):
            return replace(plain_step(rows, bounds), drafting=drafting)
        allowed = np.minimum(columns.max_nodes[rows], np.int32(shape.nodes))
        nodes = np.where(drafting, allowed, np.int32(1))
        depth = min(shape.depth, int(nodes.max()) - 1)
        return DecodeStep(rows, bounds, nodes, drafting, DraftShape(depth, shape.topk, shape.nodes))

    def _planned(self, goodput: Goodput, rows: Longs, bounds: Ints) -> DecodeStep:
        """The step that the planner chooses; rows of a step without drafts rest, if the device can keep their tails."""
        columns = self._rows
        if not columns.headed_rows and goodput.rests(_NO_ROWS, len(rows)):
            return plain_step(rows, bounds)
        with_head = columns.drafting[rows]
        headed = rows[with_head]
        late = columns.behind[headed]
        last = bool(columns.tail) and int(late.max(initial=0)) >= columns.tail
        if not last and goodput.rests(headed, len(rows)):
            return self._resting(rows, bounds, headed)
        most = np.minimum(columns.max_nodes[headed], columns.limits[headed] - columns.pledged[headed]) - 1
        behind = int(late.sum())
        context = int(columns.settled[rows].sum())
        shape, own = goodput.decide(headed, most, len(rows), context, behind, last=last)
        if not shape.drafts:
            return self._resting(rows, bounds, headed)
        self._drafting.gives_up(shape)
        nodes = np.ones(len(rows), dtype=np.int32)
        nodes[with_head] = own
        return DecodeStep(rows, bounds, nodes, with_head, shape, behind=columns.catch_up(rows) if behind else None)

    def _resting(self, rows: Longs, bounds: Ints, headed: Longs) -> DecodeStep:
        """A step that drafts nothing, whose `headed` rows rest if the device can keep their tails."""
        columns, step = self._rows, plain_step(rows, bounds)
        if not len(headed):
            return step
        if columns.tail:
            columns.rest(headed)
            resting = columns.drafting[rows]
            return replace(step, resting=resting, fresh=resting & (columns.behind[rows] == 1))
        if self._drafting.gives_up(NO_DRAFT):
            columns.become_plain()
        return replace(step, drafting=columns.drafting[rows])

    def _drafts(self, request: Request, load: int) -> bool:
        """Whether a request that becomes one of `load` rows keeps head KV."""
        if self._goodput is None:
            return self._drafting.extends(request.message, load)
        if request.recomputed or not may_draft(request.message):
            return request.recomputed
        rows, prompt, temperature = self._rows, len(request.tokens), request.message.sampling.temperature
        others = int(rows.settled[rows.decoding].sum()) + sum(len(other.tokens) for other in rows.prefilling)
        others += (load - 1 - rows.running) * prompt  # those that wait may have prompts like it
        again = self._memory.again(request.tokens, request.message.cache_salt)
        asked = Asked(load, temperature, others, prompt, request.limit - prompt, again=again)
        return self._goodput.pays(asked, headed=rows.headed_rows)

    def _prefill(self) -> PrefillStep | None:
        """Divides one step's tokens among prompts, and admits the waiting requests that get some."""
        rows, queue = self._rows, self._queue
        queue.bring_back(rows.edit_slots.free)
        first = self._with_slot(queue.first)
        oldest = min(rows.prefilling, key=lambda request: request.number, default=None)
        admits = True
        if first is not None and (oldest is None or first.number < oldest.number):
            admits = self._admit(first)
            oldest = first if admits else oldest
        if oldest is None:
            return None
        for_long = self._long.tokens(oldest, beside_others=self._others_are_open())
        counts: dict[Request, int] = {}
        if self._long.may_wait:
            counts = self._share(oldest, for_long=0, admits=admits)
        self._long.count(left_out=bool(counts))
        counts = counts or self._share(oldest, for_long=for_long, admits=admits)
        return PrefillStep(list(counts), list(counts.values()))

    def _share(self, oldest: Request, *, for_long: int, admits: bool) -> dict[Request, int]:
        """Tokens of each request in the next prefill step; `admits` says whether some may come from the queue."""
        rows, queue = self._rows, self._queue
        shares = Shares(self._chunk, threshold=self._threshold, for_long=for_long)
        shares.give_half(oldest)
        while shares.budget:
            waiting = self._with_slot(queue.shortest) if admits else None
            open_ones = (request for request in rows.prefilling if shares.room(request))
            nearest = min(open_ones, key=shares.left, default=None)
            if waiting is not None and (nearest is None or len(waiting.tokens) < shares.left(nearest)):
                admits = bool(shares.room(waiting)) and self._admit(waiting)
                if admits:
                    shares.give(waiting)
            elif nearest is not None:
                shares.give(nearest)
            else:
                break
        return shares.counts

    def _with_slot(self, next_of_queue: Callable[[], Request | None]) -> Request | None:
        """The queue's next request; sets those aside that come first and lack an edit slot."""
        while (request := next_of_queue()) is not None and self._rows.edit_slots.lacks(request):
            self._queue.set_aside(request)
        return request

    def _others_are_open(self) -> bool:
        """Whether some request would wait for a step of long prompts: a short one, or one that decodes."""
        shortest = self._with_slot(self._queue.shortest)
        return (
            bool(np.count_nonzero(self._rows.decoding))
            or (shortest is not None and shortest.to_read <= self._threshold)
            or any(request.to_read <= self._threshold for request in self._rows.prefilling)
        )

    def _admit(self, request: Request) -> bool:
        """Gives the request a row, its cached prefix and its pages, or leaves it in the queue."""
        rows = self._rows
        attempt = (request.number, self._memory.released)
        if rows.full or rows.edit_slots.lacks(request) or self._refused == attempt:
            return False
        load = min(rows.running + len(self._queue), rows.count)  # once all waiting requests are admitted
        drafts = self._drafts(request, load)
        # One page for each decoding row: without it the new request would be preempted at once.
        headroom = int(np.count_nonzero(rows.decoding))
        cached = rows.admit(request, drafting=drafts, headroom=headroom)
        if cached is None:
            self._refused = attempt
            return False
        self._queue.remove(request)
        if self._goodput is not None:
            temperature = request.message.sampling.temperature
            self._goodput.begin(request.row, temperature, headed=drafts)
        self.lookups += len(request.tokens)
        self.hits += cached
        if request.tally.admitted_at is None:
            request.tally.admitted_at = self._now
            request.tally.cached_tokens = cached
        return True
