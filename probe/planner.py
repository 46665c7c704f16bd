"""`aerie probe planner`: what `spec.planner: goodput` gains and loses against no speculation and against fixed shapes.

All modes answer the same requests on one lane, in windows that alternate forth and back (A B C, C B A), so that a
machine that warms up or slows down affects all alike. A cell's ratio is the median over the windows' ratios; its
interval comes from resampling them. The planner learns on as it would in a server: nothing is reset between windows.
"""

import random
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Lane
from aerie.probe.drive import MakeLane, Prompts, Run, ask, drive, joined
from aerie.probe.shapes import for_lane, label, with_shape
from aerie.scheduler import Scheduler
from aerie.scheduler.planner.goodput import Goodput

OFF, PLANNER, FIXED = "off", "planner", "fixed"
_RESAMPLES, _COVERED = 2000, 0.95

Cell = dict[str, Any]


def measure_planner(
    config: Config,
    prompts: Prompts,
    make_lane: MakeLane,
    *,
    loads: Sequence[int],
    temperatures: Sequence[float],
    shapes: Sequence[DraftShape] = (),
    windows: int = 4,
    max_tokens: int = 48,
    say: Callable[[str], None] = lambda text: None,
) -> list[Cell]:
    """A cell for each load, temperature and mode: off, the planner, the config's own shapes, and each of `shapes`.

    Raises ConfigError without a head.
    """
    spec = config.spec.model_copy(update={"planner": "goodput"})
    wide = for_lane(config.model_copy(update={"spec": spec}), shapes, rows=max(loads))
    own = config.model_copy(update={"scheduler": wide.scheduler})
    modes = {OFF: own, PLANNER: own.model_copy(update={"spec": spec}), FIXED: own}
    modes |= {label(shape): with_shape(own, shape) for shape in shapes}
    cells: list[Cell] = []
    with closing(make_lane(wide)) as lane:
        if not lane.capacity.drafts:
            raise ConfigError("the target has no head to plan for; set spec.head", param="spec.head")
        planner = Scheduler(lane, modes[PLANNER]).planner
        assert planner is not None
        for temperature in temperatures:
            for load in loads:
                found = _cells(lane, modes, planner, prompts, load, temperature, windows, max_tokens)
                cells += found
                say(f"T = {temperature:g}, {load} rows: {found[1]['over_off']:.2f} of off")
    return cells


def _cells(
    lane: Lane,
    modes: dict[str, Config],
    planner: Goodput,
    prompts: Prompts,
    load: int,
    temperature: float,
    windows: int,
    max_tokens: int,
) -> list[Cell]:
    asked, count = deque(prompts), max(4, 2 * load)
    runs: dict[str, list[Run]] = {mode: [] for mode in modes}
    order = list(modes)
    for number in range(windows + 1):
        part = [asked[index % len(asked)] for index in range(count)]
        asked.rotate(-count)
        for mode in order:
            requests = ask(part, [temperature], max_tokens=max_tokens, speculation=mode != OFF)
            own = planner if mode == PLANNER else None
            run = drive(lane, modes[mode], requests, concurrency=load, planner=own)
            if number:  # the first window touches memory and brings the planner into the cell
                runs[mode].append(run)
        order.reverse()
    return [_cell(mode, load, temperature, runs) for mode in modes]


def _cell(mode: str, load: int, temperature: float, runs: dict[str, list[Run]]) -> Cell:
    own, whole = runs[mode], joined(runs[mode])
    off = runs[OFF]
    over_off = [run.tokens_per_s / other.tokens_per_s for run, other in zip(own, off, strict=True)]
    same = [run.tokens == other.tokens for run, other in zip(own, off, strict=True)]
    return {
        "mode": mode,
        "rows": load,
        "temperature": temperature,
        "tokens_per_s": statistics.median(run.tokens_per_s for run in own),
        "over_off": statistics.median(over_off),
        "interval": interval(over_off),
        "acceptance_length": whole.acceptance_length,
        "ttft_over_off": statistics.median(run.ttft / other.ttft for run, other in zip(own, off, strict=True)),
        "identical": sum(same) / len(same),
        "windows": len(own),
    }


def interval(ratios: Sequence[float]) -> list[float]:
    """The bootstrap interval of the median: [lower, upper], at 95 %."""
    source = random.Random(0)
    medians = sorted(statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES))
    cut = round((1 - _COVERED) / 2 * _RESAMPLES)
    return [medians[cut], medians[-1 - cut]]
