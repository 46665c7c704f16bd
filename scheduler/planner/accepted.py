"""What settled steps show of drafts: how many nodes each row accepted, and how many levels the device drafted.

Used by `lessons`. Steps count together whatever rows they had: each call of numpy costs as much as many labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aerie.contracts.step import Ints, Longs
from aerie.scheduler.planner.samples import Settled


@dataclass(frozen=True, slots=True)
class Labels:
    """Of the rows [r] that drafted: nodes accepted, of a path that could have had `planned` nodes."""

    rows: Longs
    accepted: Ints
    planned: Ints


def labels_of(steps: Sequence[Settled]) -> Labels:
    """Of steps that drafted, without rows that got a new owner or ended."""
    outputs = [step.output for step in steps]
    works = [step.plan.decode for step in steps if step.plan.decode is not None]
    nodes = np.concatenate([work.nodes for work in works])  # [rows of all steps], as all of these
    known = np.concatenate([step.live for step in steps])
    known &= np.concatenate([step.plan.drafting for step in steps])
    known &= nodes > 1
    known &= np.concatenate([output.counts for output in outputs]) > 0
    known &= np.concatenate([output.endings for output in outputs]) == 0
    rows = np.concatenate([step.rows for step in steps])
    accepted = np.concatenate([output.accepted for output in outputs])
    depths = np.repeat([work.depth for work in works], [len(step.rows) for step in steps])
    return Labels(rows[known], accepted[known], np.minimum(nodes - 1, depths)[known])


def levels_of(steps: Sequence[Settled]) -> tuple[Ints, Ints]:
    """Levels of chains that steps planned, and that were drafted before the head was unsure, [s] each."""
    counts = [len(step.rows) for step in steps]
    drafted = np.concatenate([step.output.drafted for step in steps])
    first = np.cumsum([0, *counts[:-1]])
    return np.array([step.depth for step in steps], dtype=np.int32), np.maximum.reduceat(drafted, first)
