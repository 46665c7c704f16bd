"""What the policy chooses for the next step, and `staging` makes a plan of."""

from dataclasses import dataclass

from aerie.contracts.shape import DraftShape
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
