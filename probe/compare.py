"""`aerie probe compare`: whether speculation keeps the text the same, and how much faster it is.

Runs the same requests with speculation off, as chains, as trees and as shipped. One lane for each dtype serves all of
them. A second lane without a head gives another plain baseline, so that the baseline is the faster of plain rows beside
a head and a deployment without one. All modes alternate over several rounds of the same requests: a speed-up is the
median of the rounds' ratios, reported with its spread and its bootstrap interval; so is the acceptance length, over
answers. The reference text of a temperature and dtype is that of the first plain runs. A planner learns in all runs.
"""

import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.messages import Generate
from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.contracts.step import Lane
from aerie.probe import paired
from aerie.probe.drive import MakeLane, Prompts, Run, ask, drive, joined, planner_of, work_of
from aerie.probe.judge import Judge
from aerie.probe.shapes import chain_of, for_lane, label, shape_at, tree_of, with_shape
from aerie.scheduler.drafting import Drafting
from aerie.scheduler.planner.goodput import Goodput

Cell = dict[str, Any]
Say = Callable[[str], None]
Texts = dict[str, list[int]]
"""Tokens by request."""
PRESET = "preset"
"""The mode that drafts as the config says."""
_WARM_UP_TOKENS = 8
_ROUNDS = 5
_FEWEST, _EACH = 40, 2
"""Fewest requests of a round, so that the rounds of a cell ask 200 prompts if there are as many, and requests per open
request; the reference asks all prompts.
"""


@dataclass(frozen=True, slots=True)
class Grid:
    """What to compare. `chain` and `tree` default to the config's shape at each load."""

    temperatures: Sequence[float] = (0.0, 0.8, 1.2)
    concurrencies: Sequence[int] = (1, 8, 64)
    dtypes: Sequence[str] = ("float32", "bfloat16")
    synchronous_at: Sequence[int] = (8,)
    """Concurrencies that are also measured without overlap."""
    max_tokens: int = 32
    chain: DraftShape | None = None
    tree: DraftShape | None = None

    def shapes(self, config: Config, concurrency: int) -> dict[str, DraftShape]:
        shape = shape_at(config, concurrency)
        return {"chain": self.chain or chain_of(shape), "tree": self.tree or tree_of(shape)}


@dataclass(frozen=True, slots=True)
class Case:
    """The conditions under which a cell's modes are measured."""

    temperature: float
    concurrency: int
    overlap: bool
    dtype: str


def compare(
    config: Config, prompts: Prompts, make_lane: MakeLane, grid: Grid = Grid(), *, say: Say = lambda text: None
) -> list[Cell]:
    """One cell for each mode, temperature, concurrency, loop and dtype. Raises ConfigError without a head."""
    cells: list[Cell] = []
    for dtype in grid.dtypes:
        model = config.model.model_copy(update={"dtype": dtype})
        with _lanes(config.model_copy(update={"model": model}), make_lane, grid) as bench:
            bench.warm_up(prompts)
            for temperature in grid.temperatures:
                cells += _at_temperature(bench, prompts, temperature, say)
    _add_speedup_over_fastest(cells)
    return cells


@dataclass(frozen=True, slots=True, eq=False)
class _Path:
    """One way to answer requests."""

    name: str
    config: Config
    lane: Lane
    shape: str
    speculation: bool = True


@dataclass(frozen=True, slots=True)
class _Bench:
    """The lanes of one dtype. `config` is the one that they were made for, with the caller's own shapes."""

    config: Config
    grid: Grid
    lane: Lane
    plain_lane: Lane
    planner: Goodput | None
    """The preset's, which learns in all of its runs; None if it is fixed."""
    judge: Judge

    def modes(self, concurrency: int) -> Iterator[tuple[str, Config, str]]:
        for mode, shape in self.grid.shapes(self.config, concurrency).items():
            yield mode, with_shape(self.config, shape), label(shape)
        fixed = label(Drafting(self.config.spec, head=True).shape(concurrency))
        yield PRESET, self.config, fixed if self.planner is None else "planned"

    def run(self, path: _Path, config: Config, requests: list[Generate], concurrency: int) -> Run:
        planner = self.planner if path.name == PRESET else None
        return drive(path.lane, config, requests, concurrency=concurrency, planner=planner)

    def paths(self, concurrency: int) -> Iterator[_Path]:
        """The plain paths first: plain rows beside a head, and the worker without a head."""
        yield _Path("plain rows", with_shape(self.config, NO_DRAFT), self.lane, label(NO_DRAFT), speculation=False)
        yield _Path("plain worker", self.config, self.plain_lane, label(NO_DRAFT))
        for mode, config, shape in self.modes(concurrency):
            yield _Path(mode, config, self.lane, shape)

    def rounds(self, prompts: Prompts, case: Case, *, whole: bool) -> dict[_Path, list[Run]]:
        """Runs of every path, alternating. `whole` asks all prompts in every round."""
        paths = list(self.paths(case.concurrency))
        runs: dict[_Path, list[Run]] = {path: [] for path in paths}
        asked = len(prompts) if whole else max(_FEWEST, _EACH * case.concurrency)
        for number in range(_ROUNDS if case.overlap else 1):
            for path in paths:
                requests = ask(
                    prompts, [case.temperature], max_tokens=self.grid.max_tokens, speculation=path.speculation
                )
                turned = deque(requests)
                turned.rotate(-number * asked)
                scheduler = path.config.scheduler.model_copy(update={"overlap": case.overlap})
                config = path.config.model_copy(update={"scheduler": scheduler})
                part = list(turned)[:asked]
                runs[path].append(self.run(path, config, part, case.concurrency))
        return runs

    def warm_up(self, prompts: Prompts) -> None:
        """Runs each shape once: its first steps build kernels and touch memory."""
        for load in self.grid.concurrencies:
            requests = ask(prompts[:load], self.grid.temperatures, max_tokens=_WARM_UP_TOKENS)
            for path in self.paths(load):
                self.run(path, path.config, requests, load)


@contextmanager
def _lanes(config: Config, make_lane: MakeLane, grid: Grid) -> Iterator[_Bench]:
    shapes = [shape for load in grid.concurrencies for shape in grid.shapes(config, load).values()]
    wide = for_lane(config, shapes, rows=max(grid.concurrencies))
    plain = wide.model_copy(update={"spec": wide.spec.model_copy(update={"head": "none"})})
    with closing(make_lane(wide)) as lane, closing(make_lane(plain)) as plain_lane:
        if not lane.capacity.drafts:
            raise ConfigError("the target has no head to compare with; set spec.head", param="spec.head")
        own = wide.model_copy(update={"spec": config.spec})
        yield _Bench(own, grid, lane, plain_lane, planner_of(lane, own), Judge(config))


def _at_temperature(bench: _Bench, prompts: Prompts, temperature: float, say: Say) -> list[Cell]:
    """All cells of a temperature; starts with the highest load, where asking every prompt is quick."""
    cells: list[Cell] = []
    reference: Texts = {}
    for load in sorted(bench.grid.concurrencies, reverse=True):
        for overlap in (True, False) if load in bench.grid.synchronous_at else (True,):
            case = Case(temperature, load, overlap, bench.config.model.dtype)
            runs = bench.rounds(prompts, case, whole=not reference)
            rows, worker, *drafting = runs
            reference = reference or {answer.request.id: answer.tokens for run in runs[rows] for answer in run.answers}
            fastest = max((rows, worker), key=lambda path: statistics.median(_speeds(runs[path])))
            plain = runs[rows] + runs[worker]
            off = _cell("off", label(NO_DRAFT), runs[fastest], runs[fastest], case) | _equality(
                bench.judge, plain, reference
            )
            speeds = {path.name: statistics.median(_speeds(runs[path])) for path in (rows, worker)}
            cells.append(off | {"path": fastest.name, "paths": speeds})
            for path in drafting:
                cell = _cell(path.name, path.shape, runs[path], runs[fastest], case)
                cells.append(cell | _equality(bench.judge, runs[path], reference))
            say(f"{case.dtype}, T = {temperature}, {load} at once, {'overlapped' if overlap else 'synchronous'}")
    return sorted(cells, key=lambda cell: cell["concurrency"])


def _speeds(runs: Sequence[Run]) -> list[float]:
    return [run.tokens_per_s for run in runs]


def _cell(mode: str, shape: str, runs: Sequence[Run], plain: Sequence[Run], case: Case) -> Cell:
    whole = joined(runs)
    ratios = [run.tokens_per_s / other.tokens_per_s for run, other in zip(runs, plain, strict=True)]
    waits = [run.ttft / other.ttft for run, other in zip(runs, plain, strict=True)]
    over = paired.ratio(work_of(runs), work_of(plain))
    return {
        "mode": mode,
        "shape": shape,
        **asdict(case),
        "tokens_per_s": statistics.median(_speeds(runs)),
        "speedup": statistics.median(ratios),
        "speedup_spread": [min(ratios), max(ratios)],
        "speedup_interval": [over.lower, over.upper],
        "acceptance_length": whole.acceptance_length,
        "acceptance_interval": list(paired.interval_of_sums((whole.decoded, whole.steps))),
        "acceptance_per_position": whole.acceptance_per_position,
        "idle_share": whole.idle_share,
        "ttft": whole.ttft,
        "ttft_ratio": statistics.median(waits),
        "phase_seconds": whole.phase_seconds,
        "requests": len(whole.answers),
    }


def _equality(judge: Judge, runs: Sequence[Run], reference: Texts) -> Cell:
    """Share of requests with the reference's tokens, and the reasons for differences."""
    answers = [answer for run in runs for answer in run.answers]
    parted = [answer for answer in answers if answer.tokens != reference[answer.request.id]]
    mismatches = [judge.divergence(answer, reference[answer.request.id]) for answer in parted]
    return {
        "identical": 1 - len(parted) / len(answers),
        "excused": sum(divergence.excused for divergence in mismatches),
        "unexplained": sum(not divergence.explained for divergence in mismatches),
        "mismatches": [asdict(divergence) | {"excused": divergence.excused} for divergence in mismatches],
    }


def _add_speedup_over_fastest(cells: list[Cell]) -> None:
    """Relative to the plain path of whichever dtype is fastest on this machine."""
    for cell in cells:
        plain = [
            other["tokens_per_s"]
            for other in cells
            if other["mode"] == "off" and all(other[key] == cell[key] for key in ("temperature", "concurrency"))
        ]
        cell["speedup_over_fastest"] = cell["tokens_per_s"] / max(plain)
