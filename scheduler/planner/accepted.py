"""What settled steps show of drafts: how many nodes each row accepted, and how many levels the device drafted.

Used by `lessons`. Steps count together whatever rows they had: each call of numpy costs as much as many labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aerie.contracts.step import Ints, Longs
from aerie.scheduler.planner.samples import Drafts


@dataclass(frozen=True, slots=True)
class Labels:
    """Of the rows [r] that drafted: nodes accepted, of a path that could have had `planned` nodes."""

    rows: Longs
    """Their places."""
    accepted: Ints
    planned: Ints
    drafted: Ints
    """Nodes that were verified: fewer where the head was unsure."""


def labels_of(drafts: Sequence[Drafts]) -> Labels:
    """Of steps that drafted, without rows that got a new owner or ended."""
    outputs = [one.output for one in drafts]
    nodes = np.concatenate([one.work.nodes for one in drafts])  # [rows of all steps], as all of these
    known = np.concatenate([one.live for one in drafts])
    known &= np.concatenate([one.plan.drafting for one in drafts])
    known &= nodes > 1
    known &= np.concatenate([output.counts for output in outputs]) > 0
    known &= np.concatenate([output.endings for output in outputs]) == 0
    places = np.concatenate([one.places for one in drafts])
    accepted = np.concatenate([output.accepted for output in outputs])
    drafted = np.concatenate([output.drafted for output in outputs])
    planned = np.minimum(nodes - 1, depths_of(drafts))
    return Labels(places[known], accepted[known], planned[known], drafted[known])


def depths_of(drafts: Sequence[Drafts]) -> Ints:
    """[rows of all steps] the depth of each row's step."""
    depths: Ints = np.repeat([one.work.depth for one in drafts], [len(one.places) for one in drafts])
    return depths


def levels_of(drafts: Sequence[Drafts]) -> tuple[Ints, Ints]:
    """Levels of chains that steps planned, and that were drafted before the head was unsure, [s] each."""
    counts = [len(one.places) for one in drafts]
    drafted = np.concatenate([one.output.drafted for one in drafts])
    first = np.cumsum([0, *counts[:-1]])
    return np.array([one.work.depth for one in drafts], dtype=np.int32), np.maximum.reduceat(drafted, first)
