"""Warns once when a head's acceptance stays far below what its card promises.

`client` feeds it the scheduler's snapshots. A head that does not fit its target costs speed but changes no text, so
nothing else would show it.
"""

import logging
from dataclasses import dataclass

from aerie.contracts.messages import Snapshot

WINDOW_DRAFTS = 500
"""Drafts per judgment."""
BAD_WINDOWS = 3
"""How many consecutive judgments must be bad: a single hard text should not warn."""
FAR_BELOW = 0.5
"""A window is bad if its gain is below this share of the promised gain."""

logger = logging.getLogger("aerie.head")

_WARNING = (
    "the draft head %s commits %.2f tokens a step over its first %d positions; its card promises %.2f (%s). It may "
    "have been trained with another chat template or system prompt; for other weights of this target (a fine-tune, a "
    "quantized copy); with other taps (eagle_aux_hidden_state_layer_ids) or another RoPE base than its config says. "
    "High temperatures and unfamiliar texts lower it too. The text is right all the same; spec.head=none serves "
    "without the head"
)


@dataclass(frozen=True, slots=True)
class Promise:
    """What a head's card promises: the share of drafts that have a node accepted at depth 1, 2, ...

    Holds only depths that every draft of the deployment reaches.
    """

    head: str
    accepted: tuple[float, ...]
    source: str

    @property
    def length(self) -> float:
        """Acceptance length over these depths, the bonus included."""
        return 1 + sum(self.accepted)


class HeadWatch:
    def __init__(self, promise: Promise) -> None:
        self._promise = promise
        self._bad = 0
        self._warned = False
        self._drafts = 0
        self._accepted = 0

    def look(self, now: Snapshot) -> None:
        """Judges the drafts since the last judgment if there are enough of them."""
        drafts = now.drafts - self._drafts
        if self._warned or drafts < WINDOW_DRAFTS:
            return
        depth = len(self._promise.accepted)
        accepted = sum(now.accepted_per_position[:depth])
        gain = (accepted - self._accepted) / drafts
        self._drafts, self._accepted = now.drafts, accepted
        self._bad = self._bad + 1 if gain < FAR_BELOW * (self._promise.length - 1) else 0
        if self._bad == BAD_WINDOWS:
            self._warned = True
            promise = self._promise
            logger.warning(_WARNING, promise.head, 1 + gain, depth, promise.length, promise.source)
