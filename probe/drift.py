"""`aerie probe drift`: the planner against every fixed shape over a load that changes: bursts, temperatures, answers.

All modes go through the same *phases* on one lane, in slices as in `planner`. In each phase other requests arrive, and
another number of them is open at once; those of the phase before end first. A fixed shape may win a phase. The planner
is to beat each of them over all phases, with no knowledge of when one ends. It also says how many steps pass after
each change until the planner does what it settles on.

A *lap* goes through all phases once, beginning with another one than the lap before. Laps are measured in
pieces, and the ratios are those of all of them.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

from msgspec.structs import replace

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.messages import Generate
from aerie.contracts.shape import DraftShape
from aerie.probe.decisions import Decisions, recovery
from aerie.probe.drive import MakeLane
from aerie.probe.paired import ratio, work
from aerie.probe.planner import Place, modes_of, warmed, wide_lane
from aerie.probe.planner_cells import NULL, OFF, PLANNER
from aerie.probe.slices import Contestant, Slice, contestant

_BLOCKS = 8
"""Blocks of a phase that the intervals resample."""

Cell = dict[str, Any]


def measure_drift(
    config: Config,
    make_lane: MakeLane,
    phases: Sequence[Place],
    *,
    shapes: Sequence[DraftShape] = (),
    measured: float = 2.0,
    warm: int = 100,
    lap: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> list[Cell]:
    """The cells of one lap, one for each phase and mode. A phase ends once no speculation has worked for `measured`
    CPU seconds. Raises ConfigError without a head, or without two phases.
    """
    if len(phases) < 2:
        raise ConfigError("a load that changes has two phases at least; name more in --phases")
    modes = modes_of(config, shapes)
    turned = deque(phases)
    turned.rotate(-lap)
    with closing(wide_lane(config, make_lane, shapes, rows=max(one.rows for one in phases), modes=len(modes))) as lane:
        taking = {
            mode: contestant(lane, number, len(modes), own, _asking(turned[0], 0, mode), turned[0].rows)
            for number, (mode, own) in enumerate(modes.items())
        }
        planner = taking[PLANNER].scheduler.planner
        assert planner is not None
        decisions = Decisions().watch(planner)
        reached, size = warmed(taking, turned[0].rows, warm)
        cells = []
        for number, phase in enumerate(turned):
            before = len(decisions.drafted)
            for mode, one in taking.items():
                one.rows, one.request = phase.rows, _asking(phase, number, mode)
            reached, rounds = _phase(taking, reached, size, phase.rows, measured)
            settled = recovery(decisions.drafted[before:]) if number else None
            found = [_cell(mode, phase, lap, number, rounds) for mode in modes]
            found[list(modes).index(PLANNER)] |= {"recovery_steps": settled}
            say(_summary(phase, found))
            cells += found
    return cells


def totals(cells: Sequence[Cell]) -> list[Cell]:
    """A cell for each mode, of all laps: its speed over no speculation, and the planner's speed over its own."""
    modes = list(dict.fromkeys(cell["mode"] for cell in cells))
    works = {
        mode: {
            by: work(
                [one for cell in cells if cell["mode"] == mode for one in cell["tokens"]],
                [one for cell in cells if cell["mode"] == mode for one in cell[by]],
            )
            for by in ("seconds", "cpu_seconds")
        }
        for mode in modes
    }
    found = []
    for mode in modes:
        cell: Cell = {"mode": mode, "laps": len({one["lap"] for one in cells})}
        for by, name in (("seconds", ""), ("cpu_seconds", "cpu_")):
            off = works[OFF][by]
            over_off, ahead = ratio(works[mode][by], off), ratio(works[PLANNER][by], works[mode][by])
            cell |= {f"{name}over_off": over_off.value, f"{name}interval": [over_off.lower, over_off.upper]}
            cell |= {f"{name}planner_over": ahead.value, f"{name}planner_interval": [ahead.lower, ahead.upper]}
        found.append(cell)
    late = [cell["recovery_steps"] for cell in cells if cell.get("recovery_steps") is not None]
    return [cell | ({"recovery_steps": max(late)} if late and cell["mode"] == PLANNER else {}) for cell in found]


def _asking(phase: Place, number: int, mode: str) -> Callable[[int], Generate]:
    """Requests of a phase, which are those of no other phase."""
    request = phase.requests(speculation=mode not in (OFF, NULL))

    def asked(index: int) -> Generate:
        own = request(index)
        return replace(own, id=f"phase-{number}-{own.id}")

    return asked


def _phase(
    taking: dict[str, Contestant], reached: int, size: int, rows: int, measured: float
) -> tuple[int, list[dict[str, Slice]]]:
    """Slices of equally many tokens, forth and back. Returns the tokens that all have reached."""
    order, worked, size = deque(taking), 0.0, max(size, rows)
    rounds: list[dict[str, Slice]] = []
    while worked < measured or len(rounds) < _BLOCKS:
        forth = {mode: taking[mode].run(reached + size) for mode in order}
        back = {mode: taking[mode].run(reached + 2 * size) for mode in reversed(order)}
        rounds.append({mode: forth[mode] + back[mode] for mode in taking})
        order.rotate()
        reached += 2 * size
        worked += rounds[-1][OFF].cpu_seconds
    return reached, rounds


def _cell(mode: str, phase: Place, lap: int, number: int, rounds: Sequence[dict[str, Slice]]) -> Cell:
    blocks = list(_blocks([one[mode] for one in rounds]))
    return {
        "mode": mode,
        "lap": lap,
        "phase": number,
        "load": phase.load.name,
        "temperature": phase.key[1],
        "rows": phase.rows,
        "tokens": [one.tokens for one in blocks],
        "seconds": [one.seconds for one in blocks],
        "cpu_seconds": [one.cpu_seconds for one in blocks],
    }


def _blocks(slices: Sequence[Slice]) -> Iterator[Slice]:
    for number in range(_BLOCKS):
        own = slices[number * len(slices) // _BLOCKS : (number + 1) * len(slices) // _BLOCKS]
        yield sum(own[1:], own[0])


def _summary(phase: Place, cells: Sequence[Cell]) -> str:
    speeds = {cell["mode"]: sum(cell["tokens"]) / sum(cell["cpu_seconds"]) for cell in cells}
    ratios = "; ".join(f"{mode} {speed / speeds[OFF]:.3f}" for mode, speed in speeds.items() if mode != OFF)
    return f"{phase.load.name}, T = {phase.key[1]}, {phase.rows} rows: {ratios} of off by CPU time"
