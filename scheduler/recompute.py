"""Which row that decodes without head KV computes its tokens again to get it.

Used by the policy. While nothing is drafted, requests are admitted without head KV. Once drafting pays, such a row
takes each long step of the others for one token, for the rest of its answer; and where no row has a head, nothing would
be drafted before all answers have ended. So the row with the most to come goes back to the queue, as a preempted one
does, if that pays: its tokens become a prompt, read with head KV. One row at a time does, and only if that is short,
since meanwhile its client waits.
"""

from aerie.contracts.step import Longs
from aerie.scheduler.drafting import may_draft
from aerie.scheduler.memory import Memory
from aerie.scheduler.planner.goodput import Goodput
from aerie.scheduler.planner.keeping import Asked
from aerie.scheduler.request import Request
from aerie.scheduler.rows import Rows

SOON, LATER = 4, 32
"""Steps before the next row is looked for: after one that went back, and where none was worth it."""


class Recompute:
    """`most`: the tokens of a row that goes back."""

    def __init__(self, rows: Rows, memory: Memory, goodput: Goodput, *, most: int) -> None:
        self._rows = rows
        self._memory = memory
        self._goodput = goodput
        self._most = most
        self._wait = LATER

    def next(self, decodable: Longs) -> Request | None:
        """The row to send back before the next step, of those that could decode in it."""
        self._wait -= 1
        if self._wait > 0 or not len(decodable):
            return None
        self._wait = LATER
        request = self._best(decodable)
        if request is None or not self._fits or not self._pays(request):
            return None
        self._wait = SOON
        request.recomputed = True
        return request

    def _best(self, decodable: Longs) -> Request | None:
        """The row that may have the most tokens to come."""
        plain = decodable[~self._rows.drafting[decodable]]
        owners = (self._rows.owners[row] for row in plain.tolist())
        able = (one for one in owners if one is not None and may_draft(one.message) and len(one.tokens) <= self._most)
        return max(able, key=lambda one: one.limit - len(one.tokens), default=None)

    @property
    def _fits(self) -> bool:
        """Whether the row will find pages again: else it would wait until others have ended."""
        return self._memory.available > 2 * self._rows.count

    def _pays(self, request: Request) -> bool:
        rows = self._rows
        tokens = len(request.tokens)
        others = int(rows.settled[rows.decoding].sum()) - tokens
        asked = Asked(
            rows.running,
            request.message.sampling.temperature,
            max(others, 0),
            prompt=tokens,
            answer=request.limit - tokens,
            answered=tokens - request.prompt_length,
        )
        return self._goodput.recomputes(asked, headed=rows.headed_rows)
