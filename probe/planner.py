"""`aerie probe planner`: what `spec.planner: goodput` gains and loses against no speculation and against fixed shapes.

All modes answer the same requests on one lane, in slices of a few hundredths of a second and of as many tokens each,
whose order goes forth and back (A B C, C B A) and moves on by one after that, since the last mode of a turn finds its
data in the caches in the next one. A cell's ratio is that of all tokens over all seconds; its
interval comes from resampling the rounds of slices. No speculation takes part twice: the second time is the *null*,
whose ratio to the first one is 1 but for what the method cannot resolve. The other modes are compared with both
together. A cell ends early once its intervals are narrow. The planner meets each cell as a server would: with the costs
of its calibration, and what it has learned in the slices before those that count.

Ratios are taken by the clock and by CPU time. Where nothing else runs, the clock decides. Elsewhere CPU time does, in
which the machine's pauses do not count: that of the loop and its inline lane together, or, where the lane is another
process, of the one that worked longer, since they overlap.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.messages import Generate
from aerie.contracts.sampling import SamplingParams, SpeculationParams
from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Lane
from aerie.probe.decisions import Decisions
from aerie.probe.drive import MakeLane, Prompts
from aerie.probe.paired import Ratio, Work, ratio, work
from aerie.probe.shapes import for_lane, label, with_shape
from aerie.probe.slices import Contestant, Slice, contestant

OFF, NULL, PLANNER, FIXED = "off", "off again", "planner", "fixed"
_SLICE = 0.015
"""Seconds of a slice of no speculation, about."""
_FEWEST, _BETWEEN = 64, 8
"""Rounds of a cell at the least, and between two looks at its intervals."""

Cell = dict[str, Any]
Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of one kind; with `whole`, answers go on to `max_tokens` past end tokens."""

    name: str
    prompts: Prompts
    max_tokens: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the grid a cell lies. Temperatures alternate among requests."""

    load: Load
    temperatures: tuple[float, ...]
    rows: int

    @property
    def key(self) -> Key:
        return self.load.name, "+".join(f"{one:g}" for one in self.temperatures), self.rows

    def requests(self, *, speculation: bool) -> Callable[[int], Generate]:
        def request(number: int) -> Generate:
            load = self.load
            sampling = SamplingParams(
                temperature=self.temperatures[number % len(self.temperatures)],
                max_tokens=load.max_tokens,
                seed=number,
                ignore_eos=load.whole,
            )
            prompt = list(load.prompts[number % len(load.prompts)])
            asked = SpeculationParams(enabled=speculation)
            return Generate(id=f"request-{number}", prompt=prompt, sampling=sampling, speculation=asked)

        return request


def key_of(cell: Cell) -> Key:
    """The key of a cell's place."""
    return cell["load"], cell["temperature"], cell["rows"]


def grid(loads: Sequence[Load], temperatures: Sequence[tuple[float, ...]], rows: Sequence[int]) -> list[Place]:
    return [Place(load, kinds, count) for load in loads for kinds in temperatures for count in rows]


def measure_planner(
    config: Config,
    make_lane: MakeLane,
    places: Sequence[Place],
    *,
    shapes: Sequence[DraftShape] = (),
    measured: float = 3.0,
    warm: int = 100,
    narrow: float = 0.0,
    known: Collection[Key] = (),
    seconds: float = float("inf"),
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[list[Cell]]:
    """The cells of each place, one for each mode: off, off again, the planner, the config's own shapes, and `shapes`.

    After `warm` plain steps, each mode runs for about `measured` seconds of CPU time, or until the planner's interval
    by CPU time and the null's are within `narrow` to both sides. Leaves out the places that are `known`, and begins
    none after `seconds`. Raises ConfigError without a head.
    """
    ends = time.monotonic() + seconds
    places = [place for place in places if place.key not in known]
    modes = modes_of(config, shapes)
    widest = max((place.rows for place in places), default=1)
    with closing(wide_lane(config, make_lane, shapes, rows=widest, modes=len(modes))) as lane:
        for place in places:
            if time.monotonic() > ends:
                return
            found = _cells(lane, modes, place, measured, warm, narrow)
            say(f"{place.load.name}, T = {place.key[1]}, {place.rows} rows: " + "; ".join(map(_summary, found[1:])))
            yield found


def wide_lane(config: Config, make_lane: MakeLane, shapes: Sequence[DraftShape], *, rows: int, modes: int) -> Lane:
    """A lane that so many modes share, each with so many rows. Raises ConfigError without a head."""
    spec = config.spec.model_copy(update={"planner": "goodput"})
    wide = for_lane(config.model_copy(update={"spec": spec}), shapes, rows=rows * modes)
    running = wide.scheduler.model_copy(update={"max_running": max(wide.scheduler.max_running, rows * modes)})
    lane = make_lane(wide.model_copy(update={"scheduler": running}))
    if not lane.capacity.drafts:
        lane.close()
        raise ConfigError("the target has no head to plan for; set spec.head", param="spec.head")
    return lane


def _summary(cell: Cell) -> str:
    lower, upper = cell["cpu_interval"]
    return f"{cell['mode']} {cell['cpu_over_off']:.3f} ({lower:.3f} to {upper:.3f}) by CPU time"


def modes_of(config: Config, shapes: Sequence[DraftShape]) -> dict[str, Config]:
    scheduler = config.scheduler.model_copy(update={"prefix_cache": False})  # prompts come again
    fixed = config.model_copy(
        update={"scheduler": scheduler, "spec": config.spec.model_copy(update={"planner": "fixed"})}
    )
    planned = fixed.model_copy(update={"spec": config.spec.model_copy(update={"planner": "goodput"})})
    return {OFF: fixed, NULL: fixed, PLANNER: planned, FIXED: fixed} | {
        label(shape): with_shape(fixed, shape) for shape in shapes
    }


def _cells(lane: Lane, modes: dict[str, Config], place: Place, measured: float, warm: int, narrow: float) -> list[Cell]:
    taking = {
        mode: contestant(
            lane, number, len(modes), config, place.requests(speculation=mode not in (OFF, NULL)), place.rows
        )
        for number, (mode, config) in enumerate(modes.items())
    }
    planner = taking[PLANNER].scheduler.planner
    reached, size = warmed(taking, place.rows, warm)
    decisions = None if planner is None else Decisions().watch(planner)
    order, worked = deque(modes), 0.0
    rounds: list[dict[str, Slice]] = []
    while worked < measured and not (rounds and _settled(rounds, narrow)):
        forth = {mode: taking[mode].run(reached + size) for mode in order}
        back = {mode: taking[mode].run(reached + 2 * size) for mode in reversed(order)}
        rounds.append({mode: forth[mode] + back[mode] for mode in modes})
        order.rotate()
        reached += 2 * size
        worked += rounds[-1][OFF].cpu_seconds
    cells = [_cell(mode, place, taking, rounds) for mode in modes]
    if decisions is not None:
        cells[list(modes).index(PLANNER)] |= decisions.cell()
    return cells


def warmed(taking: dict[str, Contestant], rows: int, steps: int) -> tuple[int, int]:
    """Runs all for so many plain steps. Returns the tokens that each has reached, and those of a slice."""
    reached, worked = 0, 0.0
    for _ in range(max(steps, 1)):
        reached += rows
        worked += {mode: one.run(reached) for mode, one in taking.items()}[OFF].cpu_seconds
    return reached, rows * max(1, round(_SLICE * reached / (worked * rows)))


def _settled(rounds: Sequence[dict[str, Slice]], narrow: float) -> bool:
    """Whether the intervals that matter are narrow enough."""
    if not narrow or len(rounds) < _FEWEST or len(rounds) % _BETWEEN:
        return False
    return all(_over_off(rounds, mode, by_cpu=True).half_width <= narrow for mode in (NULL, PLANNER))


def _cell(mode: str, place: Place, taking: dict[str, Contestant], rounds: list[dict[str, Slice]]) -> Cell:
    own, off = taking[mode], taking[OFF]
    both = sorted(own.ended & off.ended)
    load, temperature, rows = place.key
    by_clock, by_cpu = (_over_off(rounds, mode, by_cpu=by_cpu) for by_cpu in (False, True))
    return {
        "load": load,
        "mode": mode,
        "rows": rows,
        "temperature": temperature,
        "tokens_per_s": _work(rounds, mode, by_cpu=False).speed,
        "over_off": by_clock.value,
        "interval": [by_clock.lower, by_clock.upper],
        "tokens_per_cpu_s": _work(rounds, mode, by_cpu=True).speed,
        "cpu_over_off": by_cpu.value,
        "cpu_interval": [by_cpu.lower, by_cpu.upper],
        "acceptance_length": own.decoded / max(own.steps, 1),
        "answer_tokens": sum(len(own.answers[id]) for id in own.ended) / max(len(own.ended), 1),
        "identical": sum(own.answers[id] == off.answers[id] for id in both) / max(len(both), 1),
        "compared": len(both),
        "rounds": len(rounds),
        "requests": len(own.ttft),
        "ttft_p99_ms": 1e3 * _late(own),
        "ttft_p99_over_off": _late(own) / _late(off),
        "alone": own.share.alone / max(own.share.launched, 1),
    }


def _late(one: Contestant) -> float:
    """The 99th percentile of the seconds to the first token."""
    return float(np.quantile(one.ttft, 0.99))


def _over_off(rounds: Sequence[dict[str, Slice]], mode: str, *, by_cpu: bool) -> Ratio:
    off = _work(rounds, OFF, by_cpu=by_cpu)
    if mode not in (OFF, NULL):
        off += _work(rounds, NULL, by_cpu=by_cpu)
    return ratio(_work(rounds, mode, by_cpu=by_cpu), off)


def _work(rounds: Sequence[dict[str, Slice]], mode: str, *, by_cpu: bool) -> Work:
    slices = [one[mode] for one in rounds]
    return work([one.tokens for one in slices], [one.cpu_seconds if by_cpu else one.seconds for one in slices])
