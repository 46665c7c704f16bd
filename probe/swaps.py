"""How many steps pass until the planner drafts again when a better head takes the place of a useless one.

No server swaps heads while it runs. A replay can: before a step no draft is accepted, from then on as many nodes as
were recorded. The scheduler and the planner are the real ones. Used by `replay`.
"""

from collections.abc import Sequence
from typing import Any

from aerie.contracts.config import Config
from aerie.probe.decisions import Decisions, steps_until
from aerie.probe.recording import Recording
from aerie.probe.simulation import PLANNER, Machine, simulate

SWAPS = 3
"""Steps at which the head is swapped, one in each run: answers are at other places then."""

Cell = dict[str, Any]


def swapped(config: Config, recordings: Sequence[Recording], machine: Machine, *, depth: int, rows: int) -> Cell:
    """The cell of one machine and load. `recovery_steps`: of all swaps, the most steps until most steps draft; None if
    some never do. `drafting`: the share of the steps that draft where the better head was there from the start; where
    it is small, even that head does not pay.
    """
    whole = _drafted(config, recordings, machine, depth, rows, 0)
    plain = sum(len(one.tokens) for one in recordings) // rows
    found = [recovery_steps(config, recordings, machine, depth, rows, plain * (8 + own) // 20) for own in range(SWAPS)]
    late = [steps for steps in found if steps is not None]
    return {
        "machine": machine.label,
        "arrivals": "better head",
        "rows": rows,
        "policy": PLANNER,
        "drafting": sum(whole) / max(len(whole), 1),
        "recovery_steps": max(late) if len(late) == SWAPS else None,
    }


def recovery_steps(
    config: Config, recordings: Sequence[Recording], machine: Machine, depth: int, rows: int, swapped_at: int
) -> int | None:
    """Steps after a swap until most of the next ones draft; None if that never comes."""
    return steps_until(_drafted(config, recordings, machine, depth, rows, swapped_at)[swapped_at:], drafts=True)


def _drafted(
    config: Config, recordings: Sequence[Recording], machine: Machine, depth: int, rows: int, swapped_at: int
) -> list[bool]:
    decisions = Decisions()
    simulate(config, recordings, machine, PLANNER, depth=depth, rows=rows, swapped_at=swapped_at, decisions=decisions)
    return decisions.drafted
