"""The shape of a draft: chosen by the scheduler for each step, from a config's settings."""

from dataclasses import dataclass


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
