"""`aerie probe planner`: what `spec.planner: goodput` gains and loses against no speculation and against fixed shapes.

All modes answer the same requests on one lane, in slices of a fraction of a second and of as many tokens each,
whose order goes forth and back (A B C, C B A) and moves on by one after that, since the last mode of a turn finds its
data in the caches in the next one. `planner_cells` has what is made of the slices. A cell ends early once its intervals
are narrow. The planner meets each cell as a server would: with the costs of its calibration, and what it has learned in
the slices before those that count.

Ratios are taken by the clock and by CPU time. Where nothing else runs, the clock decides. Elsewhere CPU time does, in
which the machine's pauses do not count: that of the loop and its inline lane together, or, where the lane is another
process, of the one that worked longer, since they overlap.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.messages import Generate
from aerie.contracts.sampling import SamplingParams, SpeculationParams
from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Lane
from aerie.probe.decisions import Decisions
from aerie.probe.drive import MakeLane, Prompts
from aerie.probe.planner_cells import FIXED, NULL, OFF, PLANNER, Cell, cell_of, narrow_enough, over_best
from aerie.probe.shapes import for_lane, label, with_shape
from aerie.probe.slices import Contestant, Slice, contestant

_WARMING = 32
"""Plain steps of a slice before the first that count."""
_SLICE = 0.2
"""Seconds of a slice of no speculation, about."""
Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of one kind, with answers of `max_tokens` at most."""

    name: str
    prompts: Prompts
    max_tokens: int


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
                max_tokens=self._limit(number),
                seed=number,
            )
            prompt = list(load.prompts[number % len(load.prompts)])
            asked = SpeculationParams(enabled=speculation)
            return Generate(id=f"request-{number}", prompt=prompt, sampling=sampling, speculation=asked)

        return request

    def _limit(self, number: int) -> int:
        """Tokens of the n-th answer at most. The first ones are cut at lengths of equal distances: else all would end
        together, and whether a slice reads the next prompts would be chance.
        """
        whole = self.load.max_tokens
        return whole if number >= self.rows else max(whole * (number + 1) // self.rows, 1)


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

    After `warm` plain steps, each mode runs for about `measured` seconds of CPU time, or until the planner's intervals
    by CPU time, over off and over the best fixed way, and the null's are within `narrow` to both sides. Leaves out the
    places that are `known`, and begins none after `seconds`. Raises ConfigError without a head.
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
    while worked < measured and not narrow_enough(rounds, narrow):
        forth = {mode: taking[mode].run(reached + size) for mode in order}
        back = {mode: taking[mode].run(reached + 2 * size) for mode in reversed(order)}
        rounds.append({mode: forth[mode] + back[mode] for mode in modes})
        order.rotate()
        reached += 2 * size
        worked += rounds[-1][OFF].cpu_seconds
    load, temperature, rows = place.key
    cells = [
        {"load": load, "mode": mode, "rows": rows, "temperature": temperature} | cell_of(mode, taking, rounds)
        for mode in modes
    ]
    if decisions is not None:
        cells[list(modes).index(PLANNER)] |= over_best(rounds) | decisions.cell()
    return cells


def warmed(taking: dict[str, Contestant], rows: int, steps: int) -> tuple[int, int]:
    """Runs all for about so many plain steps, in slices of several: a step alone waits for a lane that slept. Returns
    the tokens that each has reached, and those of a slice.
    """
    reached, worked = 0, 0.0
    for _ in range(-(-max(steps, 1) // _WARMING)):
        reached += rows * min(max(steps, 1), _WARMING)
        worked += {mode: one.run(reached) for mode, one in taking.items()}[OFF].cpu_seconds
    return reached, rows * max(1, round(_SLICE * reached / (worked * rows)))
