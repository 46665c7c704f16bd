"""`aerie probe replay`: recorded answers at steady loads, under arrivals and with a better head, on three machines.

The costs of this machine are those of a calibration and of a short run of the planner on it. The two GPUs are rooflines
of an 8B model, labelled *simulated*: only the acceptance and the scheduler are real there.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.shape import DraftShape
from aerie.probe.arrivals import ARRIVALS, arrivals
from aerie.probe.drive import MakeLane, drive
from aerie.probe.real_runs import beside_real_runs
from aerie.probe.recording import Recording
from aerie.probe.shapes import for_lane
from aerie.probe.simulation import H100, H200, Machine, Policy, compared, measured_machine, roofline_machine
from aerie.probe.swaps import swapped
from aerie.scheduler import Scheduler

_BUSY = 0.7
"""Share of what plain decoding could answer at which requests arrive."""

Cell = dict[str, Any]


def measure_replays(
    config: Config,
    recordings: Sequence[Recording],
    make_lane: MakeLane,
    *,
    statics: Sequence[Policy],
    depth: int,
    loads: Sequence[int],
    say: Callable[[str], None] = lambda text: None,
) -> list[Cell]:
    """Cells of every machine, load and kind of arrivals, one for each policy; of a head that becomes better; and of
    real runs that replays are held to. Raises ConfigError where there are fewer requests than are to be open at once.
    """
    rows = max(loads)
    if len(recordings) < rows:
        raise ConfigError(f"{rows} requests cannot be open at once: {len(recordings)} were recorded; record more")
    machines = [
        _this_machine(config, recordings, make_lane, depth=depth, rows=rows),
        roofline_machine("H100", H100),
        roofline_machine("H200", H200),
    ]
    cells: list[Cell] = []
    for cell in beside_real_runs(config, recordings, machines[0], make_lane, depth=depth, loads=loads):
        cells.append(cell)
        say(f"{cell['policy']}, {cell['rows']} rows: {cell['replayed_over_real']:.3f} of a real run's speed")
    for machine in machines:
        off_speed = 0.0
        for load in loads:
            found = list(compared(config, recordings, machine, statics, depth=depth, rows=load))
            cells += [{"arrivals": "steady"} | cell for cell in found]
            off_speed = found[0]["tokens_per_s"]
            say(f"{machine.label}, {load} rows: {_of(found, 'planner'):.3f} of off, {_best(found):.3f} of the best")
            cells.append(swapped(config, recordings, machine, depth=depth, rows=load))
            say(f"{machine.label}, {load} rows: {cells[-1]['recovery_steps']} steps until a better head is used")
        answer = sum(len(one.tokens) for one in recordings) / len(recordings)
        for kind in ARRIVALS:
            times = arrivals(kind, len(recordings), _BUSY * off_speed / answer)
            found = list(compared(config, recordings, machine, statics, depth=depth, rows=rows, times=times))
            cells += [{"arrivals": kind} | cell for cell in found]
            say(f"{machine.label}, {kind}: latency {found[-2]['latency_over_off']:.3f} of off")
    return cells


def _of(cells: Sequence[Cell], policy: str) -> float:
    return next(float(cell["over_off"]) for cell in cells if cell["policy"] == policy)


def _best(cells: Sequence[Cell]) -> float:
    return next(float(cell["over_best_static"]) for cell in cells if cell["policy"] == "planner")


def _this_machine(
    config: Config, recordings: Sequence[Recording], make_lane: MakeLane, *, depth: int, rows: int
) -> Machine:
    spec = config.spec.model_copy(update={"planner": "goodput", "confidence_threshold": 0.0})
    planned = for_lane(config.model_copy(update={"spec": spec}), [DraftShape(depth, 1, depth + 1)], rows=rows)
    with closing(make_lane(planned)) as lane:
        planner = Scheduler(lane, planned).planner
        if planner is None:
            raise ConfigError("the target has no head to replay; set spec.head", param="spec.head")
        for load in (1, 4):  # costs with context, which a calibration has none of
            drive(lane, planned, [one.request for one in recordings[: 2 * load]], concurrency=load, planner=planner)
        return measured_machine(planner.costs)
