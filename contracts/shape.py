"""The shape of a draft: chosen by the scheduler for each step, from a config's settings."""

from collections.abc import Iterable
from dataclasses import dataclass

_DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 63)


@dataclass(frozen=True, slots=True)
class DraftShape:
    """A step's levels below the root, children kept, and nodes verified for each row, root included."""

    depth: int
    topk: int
    nodes: int

    @property
    def drafts(self) -> bool:
        return self.depth > 0 and self.nodes > 1


NO_DRAFT = DraftShape(depth=0, topk=1, nodes=1)


def chain_depths(shapes: Iterable[DraftShape]) -> tuple[int, ...]:
    """The depths of chains, ascending, that `spec.planner: goodput` chooses from within the largest of `shapes`: what
    it prices, and what a GPU records.
    """
    most = max((min(shape.depth, shape.nodes - 1) for shape in shapes if shape.drafts), default=1)
    return (*(depth for depth in _DEPTHS if depth < most), most)
