"""How much to draft: a step's shape by its number of rows, and which rows keep head KV.

Used by the policy. A row that misses one extend has a hole in its head KV and could draft again only after a recompute,
so disabling drafting is permanent for that request. It therefore happens only after PATIENCE decode steps in a row
whose load asks for no drafting. A burst of short requests must not cost the long ones their head KV. Under lasting
load, however, extends that nobody uses would make speculation slower than none. Until then such rows step with depth 0.

A head that stays useless, as one with broken weights does, is switched off for good: its drafts never change the text,
and they cost time in every step.
"""

import logging

from aerie.contracts.messages import Generate
from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.contracts.spec_section import SpecConfig
from aerie.contracts.step import MAX_NODES

PATIENCE = 8
WINDOW_DRAFTS = 500
"""Drafts in one window; the head is judged once a window."""
BAD_WINDOWS = 3
"""Bad windows in a row that switch the head off."""
USELESS_BELOW = 0.02
"""A bad window has a smaller share of drafts with an accepted node. No such head can pay for its passes: its weights
are broken, or another target's.
"""

logger = logging.getLogger("aerie.head")
_SWITCHED_OFF = (
    "the draft head is switched off until a restart: a node was accepted in %d of its last %d drafts, and in as few of "
    "those before (%d times in a row). Its weights may be broken or another target's. The text is right all the same"
)


class Drafting:
    """Chooses draft shapes. `head` says whether the device has a head; without one nothing is drafted."""

    def __init__(self, spec: SpecConfig, *, head: bool) -> None:
        self._by_load: list[tuple[float, DraftShape]] = []
        if head:
            self._by_load = [(load.rows, load.shape) for load in spec.by_load]
            self._by_load.sort(key=lambda entry: entry[0])
            self._by_load = self._by_load or [(float("inf"), spec.shape)]
        self._steps_without = 0
        self._judged = spec.simulate_acceptance is None
        self._drafts = self._useful = self._bad_windows = 0
        self.switched_off = False

    @property
    def shapes(self) -> list[DraftShape]:
        """The shapes of all loads that draft."""
        return [shape for _, shape in self._by_load if shape.drafts]

    @property
    def max_depth(self) -> int:
        return max((shape.depth for _, shape in self._by_load), default=0)

    @property
    def max_nodes(self) -> int:
        return max((shape.nodes for _, shape in self._by_load), default=1)

    def shape(self, rows: int) -> DraftShape:
        """The shape while `rows` rows run. Beyond the last entry, or once the head is off, nothing is drafted."""
        if self.switched_off:
            return NO_DRAFT
        for limit, shape in self._by_load:
            if rows <= limit:
                return shape if shape.drafts else NO_DRAFT
        return NO_DRAFT

    def extends(self, message: Generate, running: int) -> bool:
        """Whether a request that becomes one of `running` keeps head KV. `running` counts requests admitted with it:
        else the first of a burst would keep head KV for a load that is gone after one step.
        """
        return may_draft(message) and self.shape(running).drafts

    def judge(self, drafts: int, useful: int) -> None:
        """Takes each step's drafts and how many had an accepted node; switches a useless head off and logs it."""
        self._drafts += drafts
        self._useful += useful
        if not self._judged or self.switched_off or self._drafts < WINDOW_DRAFTS:
            return
        self._bad_windows = self._bad_windows + 1 if self._useful < USELESS_BELOW * self._drafts else 0
        if self._bad_windows == BAD_WINDOWS:
            self.switched_off = True
            logger.warning(_SWITCHED_OFF, self._useful, self._drafts, BAD_WINDOWS)
        self._drafts = self._useful = 0

    def gives_up(self, shape: DraftShape) -> bool:
        """Takes the shape of each decode step; True when the rows that still draft should become plain."""
        self._steps_without = 0 if shape.drafts else self._steps_without + 1
        return self._steps_without >= PATIENCE


def may_draft(message: Generate) -> bool:
    """Whether the request lets anything be drafted for it."""
    return message.speculation.enabled and max_nodes(message) > 1


def max_nodes(message: Generate) -> int:
    """Nodes that the request allows for its row, root included."""
    limit = message.speculation.max_draft_tokens
    return MAX_NODES if limit is None else min(1 + max(limit, 0), MAX_NODES)
