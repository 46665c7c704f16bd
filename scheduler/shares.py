"""How prompts share the tokens of one prefill step, so that short ones are quick and none starves.

Used by the policy. A prompt is long if more than `long_prefill_threshold` of its tokens were left to compute when it
arrived, and short otherwise. The rules, with C = prefill_chunk and L = long_prefill_chunk:

1. The oldest prompt gets half of what is available for its kind; the rest goes to the prompts with the least left.
2. While a short prompt or a decoding row is open, and for LINGER prefill steps after, the long prompts of a step
   share L tokens, and the others the rest. L doubles for every AGING prefill steps that the oldest prompt has
   been open, up to C / 2.
3. If L < C, a step that reads short prompts leaves the long ones out, but never two such steps in a row.

The bound. For a prompt that arrives, let w_q be the tokens left to compute of each prompt q that is not younger,
itself included. While rows and pages are free, the oldest prompt always has a row. At least one of two consecutive
prefill steps gives it h = max(1, L // 2) tokens or all that it has left, since its kind shares at least L tokens of the
step. No other prompt joins the older ones, so the new prompt is computed after at most

    2 * sum(ceil(w_q / h))  prefill steps,

whatever arrives later. While rows decode, at least every second step is a prefill step, which at most doubles the
number of steps. Aging shortens a long wait: once the prompt has been open for m * AGING prefill steps, so has the
oldest, and h has doubled m times, up to C / 4. The wait then grows with the logarithm of the backlog, not with the
backlog.
"""

import sys

from aerie.scheduler.request import Request

AGING = 2048
"""Prefill steps after which the long prompts' share doubles."""
LINGER = 8
"""Prefill steps for which long prompts stay limited once they are alone: another short prompt may arrive."""


class Shares:
    """Tokens of each request in a prefill step of `budget` tokens. Long prompts share `for_long` of them."""

    def __init__(self, budget: int, *, threshold: int, for_long: int) -> None:
        self.budget = budget
        self.counts: dict[Request, int] = {}
        self._threshold = threshold
        self._for_long = for_long

    def left(self, request: Request) -> int:
        """Prompt tokens that are left after this step."""
        return request.remaining - self.counts.get(request, 0)

    def room(self, request: Request) -> int:
        """The most tokens that the request may still get."""
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
        """At most half of the tokens available to prompts of its kind."""
        self.give(request, max(self._available(request) // 2, 1))

    def _available(self, request: Request) -> int:
        return min(self._for_long, self.budget) if request.to_read > self._threshold else self.budget


class LongPrompts:
    """How much of each prefill step is for long prompts. Counts the steps, and so how long each prompt waits."""

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
        """Tokens that the long prompts of the next step share, if they get any."""
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
        """Counts a planned prefill step; `left_out` says that it was for short prompts only."""
        self.prefills += 1
        self._left_out = left_out
