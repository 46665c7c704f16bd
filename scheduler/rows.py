"""The running requests: per-row numbers as numpy columns, so that planning and settling a step take a few array
operations at any batch size.

Used by the policy, staging and settle. Invariant: a row with an owner is PREFILL or DECODE and holds its pages in
`memory`; a row without one is free, and its columns are not read. Indices are int64, by which numpy gathers several
times faster than by int32; only plans narrow them.
"""

import numpy as np

from aerie.contracts.step import Bools, Capacity, Ints, Longs
from aerie.scheduler.drafting import max_nodes
from aerie.scheduler.edit_slots import EditSlots
from aerie.scheduler.future_map import FutureMap
from aerie.scheduler.memory import Memory
from aerie.scheduler.request import Phase, Request

_ALWAYS = np.iinfo(np.int32).max


class Rows:
    """The columns of at most `limit` of the device's rows."""

    def __init__(self, capacity: Capacity, memory: Memory, *, limit: int, max_depth: int) -> None:
        rows = self.count = min(capacity.rows, limit)
        self.memory = memory
        self.future = FutureMap(rows)
        self.edit_slots = EditSlots(capacity)
        self.owners: list[Request | None] = [None] * rows
        self.ids = [""] * rows
        """Ids of the owners; `texts` are the owners' token lists, not copies."""
        self.texts: list[list[int]] = [[] for _ in range(rows)]
        self.prefilling: list[Request] = []
        self.newcomers: list[Request] = []
        """Owners that the device does not know yet: the next plan starts their rows."""
        self.with_logprobs = 0
        """Running requests that want log probabilities."""
        self.with_trees = 0
        """Running requests that want to see what is drafted."""
        self.gained = 1.0
        """Tokens that a row gained by the last decode step that settled, in the mean."""
        self._free = list(range(rows - 1, -1, -1))

        def column() -> Ints:
            return np.zeros(rows, dtype=np.int32)

        self.decoding: Bools = np.zeros(rows, dtype=np.bool_)
        """Rows whose last prompt chunk has been launched."""
        self.settled = column()
        """Tokens whose KV a settled step has written."""
        self.bounds = column()
        """Upper bound of the length once everything in flight has run: each step may add depth + 1."""
        self.pledged = column()
        """Lower bound of the known tokens once everything in flight has run: each step adds at least one."""
        self.limits = column()
        self.drafting: Bools = np.zeros(rows, dtype=np.bool_)
        self.headed = column()
        """Tokens below which the row's pages have head KV."""
        self.behind = column()
        """Tokens in the row's tail once everything in flight has run: those that the head has not seen."""
        self.tail = capacity.tail
        self.max_nodes = column()
        self.logprobs = column()
        self.drafted = column()
        self.forbidden = column()
        self.accepted_steps: Longs = np.zeros((rows, max_depth + 1), dtype=np.int64)
        """Decode steps that accepted exactly 0, 1, ... nodes."""

    @property
    def running(self) -> int:
        return self.count - len(self._free)

    @property
    def full(self) -> bool:
        return not self._free

    @property
    def headed_rows(self) -> int:
        """Rows that keep head KV."""
        return int(np.count_nonzero(self.drafting))

    def admit(self, request: Request, *, drafting: bool, headroom: int) -> int | None:
        """Gives a request a row and pages for its tokens; returns the number of cached tokens, None if pages lack."""
        row = self._free[-1]
        salt, tokens = request.message.cache_salt, request.tokens
        cached = self.memory.admit(row, tokens, salt, headless=not drafting, headroom=headroom)
        if cached is None:
            return None
        self._free.pop()
        self.edit_slots.take(request)
        self.owners[row], self.ids[row], self.texts[row] = request, request.id, tokens
        self.prefilling.append(request)
        self.newcomers.append(request)
        request.row, request.computed, request.phase = row, cached, Phase.PREFILL
        request.to_read = request.remaining
        self.decoding[row] = False
        self.settled[row] = cached
        self.limits[row] = request.limit
        self.drafting[row] = drafting
        self.headed[row] = _ALWAYS if drafting else 0
        self.behind[row] = 0
        self.max_nodes[row] = max_nodes(request.message)
        self.logprobs[row] = request.message.sampling.logprobs
        self.with_logprobs += request.message.sampling.logprobs >= 0
        self.with_trees += request.message.speculation.trees
        self.drafted[row] = self.forbidden[row] = 0
        self.accepted_steps[row] = 0
        return cached

    def begin_decoding(self, request: Request) -> None:
        """The request's last prompt chunk is being launched: its length is known, and one token will come."""
        row, length = request.row, len(request.tokens)
        request.phase = Phase.DECODE
        self.prefilling.remove(request)
        self.decoding[row] = True
        self.bounds[row] = length
        self.pledged[row] = length + 1

    def vacate(self, request: Request, phase: Phase) -> None:
        """Takes a request off its row in any phase: its settled pages go to the cache, the others are freed."""
        row = request.row
        self.publish(request)
        self.memory.release(row)
        self.future.leave(row)
        self.edit_slots.give_back(request)
        request.tally.add(int(self.drafted[row]), int(self.forbidden[row]), self.accepted_steps[row])
        if request.phase is Phase.PREFILL:
            self.prefilling.remove(request)
        if request in self.newcomers:
            self.newcomers.remove(request)
        self.with_logprobs -= request.message.sampling.logprobs >= 0
        self.with_trees -= request.message.speculation.trees
        self.decoding[row] = self.drafting[row] = False
        self.owners[row] = None
        self._free.append(row)
        request.row, request.computed, request.phase = -1, 0, phase
        request.to_read = request.remaining

    def publish(self, request: Request) -> None:
        """Offers a request's settled pages to the prefix cache."""
        row, salt = request.row, request.message.cache_salt
        self.memory.publish(row, request.tokens, int(self.settled[row]), int(self.headed[row]), salt)

    def decodable(self) -> Longs:
        """Rows that may decode: those certain to reach their limit with the steps in flight are left out."""
        rows: Longs = (self.decoding & (self.pledged < self.limits)).nonzero()[0]
        return rows

    def bounds_of(self, rows: Longs) -> Ints:
        """Upper bounds of the rows' lengths before the step to be planned."""
        # The device ends a row at its limit, when its length is one less.
        bounds: Ints = np.minimum(self.bounds[rows], self.limits[rows] - 1)
        return bounds

    def become_plain(self) -> None:
        """Stops extending the head for every row: pages from here on have no head KV."""
        self._leave_head(self.drafting.nonzero()[0])

    def rest(self, rows: Longs) -> None:
        """The step being planned keeps the taps of these rows instead of extending the head; rows whose tail is full
        become plain.
        """
        behind = self.behind[rows]
        if int(behind.max()) >= self.tail:
            full = behind >= self.tail
            self._leave_head(rows[full])
            rows, behind = rows[~full], behind[~full]
        fresh = rows[behind == 0]
        if len(fresh):
            self.headed[fresh] = np.minimum(self.headed[fresh], self.settled[fresh])
        self.behind[rows] = behind + 1

    def stall(self, rows: Longs) -> None:
        """A step in which these rows were to rest has left their tails as they were: their masks were late. Rows that
        a step in flight lets catch up have none left to count.
        """
        rows = rows[self.behind[rows] > 0]
        self.behind[rows] -= 1
        seen = rows[self.drafting[rows] & (self.behind[rows] == 0)]
        self.headed[seen] = _ALWAYS

    def catch_up(self, rows: Longs) -> Ints:
        """The step being planned first extends the head with the tails of these rows: their lengths."""
        behind: Ints = np.where(self.drafting[rows], self.behind[rows], np.int32(0))
        self.behind[rows] = 0
        return behind

    def caught_up(self, rows: Longs, lengths: Ints) -> None:
        """The head has seen the tails of these rows, up to `lengths`, unless they rest again by now."""
        self.headed[rows] = np.where(self.behind[rows] > 0, lengths, _ALWAYS)

    def _leave_head(self, rows: Longs) -> None:
        self.headed[rows] = np.minimum(self.headed[rows], self.settled[rows])
        self.drafting[rows] = False

    def most_logprobs(self, rows: Longs) -> int:
        """The most log probabilities that any of these rows wants; -1 if none wants them."""
        return int(self.logprobs[rows].max()) if self.with_logprobs else -1

    def check(self, flying: Longs) -> None:
        """Raises AssertionError unless each row without a step in flight is exactly as settled steps left it.

        `flying` are the rows with one. A bound that drifts never changes the text; it wastes pages, and only this check
        shows it.
        """
        resting = set(range(self.count)) - set(flying.tolist())
        for row, request in enumerate(self.owners):
            if request is None or row not in resting:
                continue
            settled, known = int(self.settled[row]), len(request.tokens)
            if request.phase is Phase.PREFILL:
                assert request.computed == settled, (
                    f"{request.id} has {request.computed} tokens computed, {settled} settled"
                )
            else:
                bound, pledged = int(self.bounds[row]), int(self.pledged[row])
                assert settled == known - 1, f"{request.id} has {known} tokens and {settled} settled"
                assert bound == settled, f"{request.id} has {settled} tokens settled and the bound {bound} at rest"
                assert pledged == known, f"{request.id} has {known} tokens and {pledged} pledged at rest"
            # The last plan may have covered what a step of the deepest draft would commit.
            self.memory.check_row(row, known, slack=self.accepted_steps.shape[1])

    def youngest(self) -> Request:
        """The running request that arrived last."""
        return max((owner for owner in self.owners if owner is not None), key=lambda request: request.number)
