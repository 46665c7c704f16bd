"""How the tokens of one prefill step are shared out among prompts, so that short ones are quick and none starves.

Used by the policy. A prompt is long when more than `long_prefill_threshold` of its tokens were to read as it came in,
and short otherwise. The rules, with C = prefill_chunk and L = long_prefill_chunk:

1. Half of what there is for its kind goes to the oldest prompt, the rest to those with the least left.
2. While a short prompt or a decoding row is open, and for LINGER prefill steps after, the long prompts of a step
   get L tokens together, and the others the rest. L doubles for every AGING prefill steps that the oldest prompt has
   been open, up to C / 2.
3. Where L < C, a step that reads short prompts leaves the long ones out, but never two such steps in a row.

The bound. Let a prompt arrive, and let w_q be the tokens that the prompts q which are no younger, itself among them,
have left to read. While rows and pages are free, the oldest prompt always has a row. Of two prefill steps in a row at
least one gives it h = max(1, L // 2) tokens or all that it has left: its kind shares at least L of the step. No other
prompt joins the older ones, so the new prompt is read after at most

    2 * sum(ceil(w_q / h))  prefill steps,

whatever arrives later. While rows decode, every second step is a prefill step: that makes at most twice as many steps.
Aging shortens a long wait: once the prompt has been open for m * AGING prefill steps, so has the oldest, and h has
doubled m times until it is C / 4. The wait then grows with the logarithm of the backlog, not with the backlog.
"""

import sys

from scheduler.request import Request

AGING = 2048
"""Prefill steps after which long prompts get twice as much."""
LINGER = 8
"""Prefill steps for which long prompts stay limited once they are alone: the next short one may be on its way."""


class Shares:
    """What each request gets of a prefill step's `budget`. Long prompts get `for_long` of it together."""

    def __init__(self, budget: int, *, threshold: int, for_long: int) -> None:
        self.budget = budget
        self.counts: dict[Request, int] = {}
        self._threshold = threshold
        self._for_long = for_long

    def left(self, request: Request) -> int:
        """Prompt tokens that this step does not read yet."""
        return request.remaining - self.counts.get(request, 0)

    def room(self, request: Request) -> int:
        """The most that the request may still get."""
        return min(self.left(request), self._available(request))

    def give(self, request: Request, most: int = sys.maxsize) -> None:
        given = min(most, self.room(request))
        if not given:
            return
        self.counts[request] = self.counts.get(request, 0) + given
        self.budget -= given
        if request.to_read > self._threshold:
            self._for_long -= given

    def give_half(self, request: Request) -> None:
        """At most half of what there is for prompts of its kind."""
        self.give(request, max(self._available(request) // 2, 1))

    def _available(self, request: Request) -> int:
        return min(self._for_long, self.budget) if request.to_read > self._threshold else self.budget


class LongPrompts:
    """How much of each prefill step is for long prompts. Told of every step, it knows who waits for how long."""

    def __init__(self, *, budget: int, limit: int) -> None:
        self.prefills = 0
        """Prefill steps so far."""
        self._budget = budget
        self._limit = min(limit, budget)
        self._most = max(self._limit, budget // 2)
        self._alone = LINGER
        """Prefill steps since another request was open."""
        self._left_out = False

    def tokens(self, oldest: Request, *, beside_others: bool) -> int:
        """What the long prompts of the next step get together, if they get anything."""
        self._alone = 0 if beside_others else self._alone + 1
        if self._alone > LINGER:
            return self._budget
        doublings = (self.prefills - oldest.prefills_before) // AGING
        return self._most if doublings >= self._most.bit_length() else min(self._limit << doublings, self._most)

    @property
    def may_wait(self) -> bool:
        """Whether a step that reads short prompts may leave the long ones out."""
        return self._limit < self._budget and not self._left_out

    def count(self, *, left_out: bool) -> None:
        """A prefill step is planned; `left_out` says that it was for short prompts only."""
        self.prefills += 1
        self._left_out = left_out
