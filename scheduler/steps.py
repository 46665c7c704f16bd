"""What the policy chooses for the next step, and `staging` makes a plan of."""

from dataclasses import dataclass

import numpy as np

from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.contracts.step import Bools, Ints, Longs
from aerie.scheduler.request import Request


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """The next `counts[i]` prompt tokens of each request."""

    requests: list[Request]
    counts: list[int]


@dataclass(frozen=True, slots=True)
class DecodeStep:
    rows: Longs
    bounds: Ints
    nodes: Ints
    drafting: Bools
    shape: DraftShape
    resting: Bools | None = None
    fresh: Bools | None = None
    behind: Ints | None = None


def plain_step(rows: Longs, bounds: Ints) -> DecodeStep:
    """One in which no row drafts, rests or extends its head."""
    count = len(rows)
    return DecodeStep(rows, bounds, np.ones(count, dtype=np.int32), np.zeros(count, dtype=np.bool_), NO_DRAFT)
