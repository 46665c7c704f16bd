"""`aerie probe planner`: what `spec.planner: goodput` gains and loses against no speculation and against fixed shapes.

All modes answer the same requests on one lane, in slices of a few hundredths of a second whose order alternates forth
and back (A B C, C B A). A cell's ratio is that of all tokens over all seconds; its interval comes from resampling the
rounds of slices. The planner meets each cell as a server would: with the costs of its calibration, and what it has
learned in the slices before those that count.

Ratios are taken by the clock and by CPU time. Where nothing else runs, the clock decides. Elsewhere CPU time does, in
which the machine's pauses do not count: that of the loop and its inline lane together, or, where the lane is another
process, of the one that worked longer, since they overlap.
"""

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.messages import Generate
from aerie.contracts.sampling import SamplingParams, SpeculationParams
from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Lane
from aerie.probe.drive import MakeLane, Prompts
from aerie.probe.shapes import for_lane, label, with_shape
from aerie.probe.slices import Contestant, Slice, contestant

OFF, PLANNER, FIXED = "off", "planner", "fixed"
_RESAMPLES, _COVERED = 1000, 0.95
_SLICE = 0.03
"""Seconds of a slice."""

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
    warm: float = 1.0,
    known: Collection[Key] = (),
    seconds: float = float("inf"),
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[list[Cell]]:
    """The cells of each place, one for each mode: off, the planner, the config's own shapes, and each of `shapes`.

    Each mode runs for `measured` seconds after `warm` ones. Leaves out the places that are `known`, and begins none
    after `seconds`. Raises ConfigError without a head.
    """
    ends = time.monotonic() + seconds
    places = [place for place in places if place.key not in known]
    modes = _modes(config, shapes)
    widest = max((place.rows for place in places), default=1)
    spec = config.spec.model_copy(update={"planner": "goodput"})
    wide = for_lane(config.model_copy(update={"spec": spec}), shapes, rows=widest * len(modes))
    running = wide.scheduler.model_copy(update={"max_running": max(wide.scheduler.max_running, widest * len(modes))})
    with closing(make_lane(wide.model_copy(update={"scheduler": running}))) as lane:
        if not lane.capacity.drafts:
            raise ConfigError("the target has no head to plan for; set spec.head", param="spec.head")
        for place in places:
            if time.monotonic() > ends:
                return
            found = _cells(lane, modes, place, measured, warm)
            say(
                f"{place.load.name}, T = {place.key[1]}, {place.rows} rows: "
                f"{found[1]['over_off']:.3f} of off, by CPU time {found[1]['cpu_over_off']:.3f}"
            )
            yield found


def _modes(config: Config, shapes: Sequence[DraftShape]) -> dict[str, Config]:
    scheduler = config.scheduler.model_copy(update={"prefix_cache": False})  # prompts come again
    fixed = config.model_copy(
        update={"scheduler": scheduler, "spec": config.spec.model_copy(update={"planner": "fixed"})}
    )
    planned = fixed.model_copy(update={"spec": config.spec.model_copy(update={"planner": "goodput"})})
    return {OFF: fixed, PLANNER: planned, FIXED: fixed} | {label(shape): with_shape(fixed, shape) for shape in shapes}


def _cells(lane: Lane, modes: dict[str, Config], place: Place, measured: float, warm: float) -> list[Cell]:
    taking = {
        mode: contestant(lane, number, len(modes), config, place.requests(speculation=mode != OFF), place.rows)
        for number, (mode, config) in enumerate(modes.items())
    }
    order, worked = list(modes), 0.0
    rounds: list[dict[str, Slice]] = []
    while worked < warm + measured:
        slices = {mode: taking[mode].run(_SLICE) for mode in order}
        order.reverse()
        if worked >= warm:
            rounds.append(slices)
        worked += slices[OFF].cpu_seconds
    return [_cell(mode, place, taking, rounds) for mode in modes]


def _cell(mode: str, place: Place, taking: dict[str, Contestant], rounds: list[dict[str, Slice]]) -> Cell:
    own, off = taking[mode], taking[OFF]
    both = sorted(own.ended & off.ended)
    load, temperature, rows = place.key
    return {
        "load": load,
        "mode": mode,
        "rows": rows,
        "temperature": temperature,
        "tokens_per_s": _speed([one[mode] for one in rounds], by_cpu=False),
        "over_off": _ratio(rounds, mode, by_cpu=False),
        "interval": _interval(rounds, mode, by_cpu=False),
        "tokens_per_cpu_s": _speed([one[mode] for one in rounds], by_cpu=True),
        "cpu_over_off": _ratio(rounds, mode, by_cpu=True),
        "cpu_interval": _interval(rounds, mode, by_cpu=True),
        "acceptance_length": own.decoded / max(own.steps, 1),
        "answer_tokens": sum(len(own.answers[id]) for id in own.ended) / max(len(own.ended), 1),
        "identical": sum(own.answers[id] == off.answers[id] for id in both) / max(len(both), 1),
        "compared": len(both),
        "rounds": len(rounds),
    }


def _speed(slices: Sequence[Slice], *, by_cpu: bool) -> float:
    seconds = sum(one.cpu_seconds if by_cpu else one.seconds for one in slices)
    return sum(one.tokens for one in slices) / seconds


def _ratio(rounds: Sequence[dict[str, Slice]], mode: str, *, by_cpu: bool) -> float:
    own, off = [one[mode] for one in rounds], [one[OFF] for one in rounds]
    return _speed(own, by_cpu=by_cpu) / _speed(off, by_cpu=by_cpu)


def _interval(rounds: Sequence[dict[str, Slice]], mode: str, *, by_cpu: bool) -> list[float]:
    """The bootstrap interval of the ratio to off: [lower, upper], at 95 %."""
    source = random.Random(0)
    ratios = sorted(_ratio(source.choices(rounds, k=len(rounds)), mode, by_cpu=by_cpu) for _ in range(_RESAMPLES))
    cut = round((1 - _COVERED) / 2 * _RESAMPLES)
    return [ratios[cut], ratios[-1 - cut]]
