"""`aerie probe compare`: is the text the same with speculation, and how much faster does it come?

The same requests with speculation off, as chains, as trees, and (where the config has spec.by_load) as shipped. One
lane for each dtype serves all of them; the plain worker, without a head, has another, so that the baseline is the
faster of plain rows beside a head and a deployment that has none. The reference text of a temperature and dtype is the
first plain run's.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from contracts.config import Config
from contracts.errors import ConfigError
from contracts.step import Lane
from probe.drive import MakeLane, Prompts, Run, ask, drive
from probe.shapes import chain_of, for_lane, label, shape_at, tree_of, with_shape
from scheduler.drafting import NO_DRAFT, Drafting, Shape

if TYPE_CHECKING:
    from probe.margins import Divergence, Margins

Cell = dict[str, Any]
Say = Callable[[str], None]
_WARM_UP_TOKENS = 8
_ROUNDS = 16
"""Requests, for each open at once, that measure a mode: one request at a time takes long. The reference asks all."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What is compared. `chain` and `tree` are the config's shape at each load where they are not given."""

    temperatures: Sequence[float] = (0.0, 0.8, 1.2)
    concurrencies: Sequence[int] = (1, 8, 64)
    dtypes: Sequence[str] = ("float32", "bfloat16")
    synchronous_at: Sequence[int] = (8,)
    """Concurrencies that are measured without overlap too."""
    max_tokens: int = 40
    chain: Shape | None = None
    tree: Shape | None = None

    def shapes(self, config: Config, concurrency: int) -> dict[str, Shape]:
        shape = shape_at(config, concurrency)
        return {"chain": self.chain or chain_of(shape), "tree": self.tree or tree_of(shape)}


@dataclass(frozen=True, slots=True)
class Case:
    """Under what a cell's modes are measured."""

    temperature: float
    concurrency: int
    overlap: bool
    dtype: str


def compare(
    config: Config, prompts: Prompts, make_lane: MakeLane, grid: Grid = Grid(), *, say: Say = lambda text: None
) -> list[Cell]:
    """One cell for each mode, temperature, concurrency, loop and dtype. Raises ConfigError where there is no head."""
    cells: list[Cell] = []
    for dtype in grid.dtypes:
        model = config.model.model_copy(update={"dtype": dtype})
        with _lanes(config.model_copy(update={"model": model}), make_lane, grid) as bench:
            bench.warm_up(prompts)
            for temperature in grid.temperatures:
                cells += _at_temperature(bench, prompts, temperature, say)
    _add_speedup_over_fastest(cells)
    return cells


@dataclass(frozen=True, slots=True)
class _Bench:
    """The lanes of one dtype. `config` is what they were made for, with the caller's own shapes."""

    config: Config
    grid: Grid
    lane: Lane
    plain_lane: Lane
    judge: "_Judge"

    def modes(self, concurrency: int) -> Iterator[tuple[str, Config, Shape]]:
        for mode, shape in self.grid.shapes(self.config, concurrency).items():
            yield mode, with_shape(self.config, shape), shape
        if self.config.spec.by_load:
            yield "preset", self.config, Drafting(self.config.spec, head=True).shape(concurrency)

    def run(self, config: Config, prompts: Prompts, case: Case, *, lane: Lane, speculation: bool = True) -> Run:
        requests = ask(prompts, [case.temperature], max_tokens=self.grid.max_tokens, speculation=speculation)
        scheduler = config.scheduler.model_copy(update={"overlap": case.overlap})
        return drive(lane, config.model_copy(update={"scheduler": scheduler}), requests, concurrency=case.concurrency)

    def plain_runs(self, prompts: Prompts, case: Case) -> dict[str, Run]:
        """By path: rows that the head does not follow, and the worker without a head."""
        return {
            "plain rows": self.run(self.config, prompts, case, lane=self.lane, speculation=False),
            "plain worker": self.run(self.config, prompts, case, lane=self.plain_lane),
        }

    def warm_up(self, prompts: Prompts) -> None:
        """First steps of a shape build kernels and touch memory."""
        for load in self.grid.concurrencies:
            requests = ask(prompts[:load], self.grid.temperatures, max_tokens=_WARM_UP_TOKENS)
            drive(self.plain_lane, self.config, requests, concurrency=load)
            for _, config, _ in self.modes(load):
                drive(self.lane, config, requests, concurrency=load)


@contextmanager
def _lanes(config: Config, make_lane: MakeLane, grid: Grid) -> Iterator[_Bench]:
    shapes = [shape for load in grid.concurrencies for shape in grid.shapes(config, load).values()]
    wide = for_lane(config, shapes, rows=max(grid.concurrencies))
    plain = wide.model_copy(update={"spec": wide.spec.model_copy(update={"head": "none"})})
    with closing(make_lane(wide)) as lane, closing(make_lane(plain)) as plain_lane:
        if not lane.capacity.drafts:
            raise ConfigError("the target has no head to compare with; set spec.head", param="spec.head")
        yield _Bench(wide.model_copy(update={"spec": config.spec}), grid, lane, plain_lane, _Judge(config))


def _at_temperature(bench: _Bench, prompts: Prompts, temperature: float, say: Say) -> list[Cell]:
    """All cells of a temperature, plain ones first, since the first of them is the reference; the highest load begins,
    where asking every prompt is quick.
    """
    cells: list[Cell] = []
    reference: Run | None = None
    for load in sorted(bench.grid.concurrencies, reverse=True):
        for overlap in (True, False) if load in bench.grid.synchronous_at else (True,):
            case = Case(temperature, load, overlap, bench.config.model.dtype)
            asked = prompts if reference is None else prompts[: _ROUNDS * load]
            plain = bench.plain_runs(asked, case)
            reference = reference or plain["plain rows"]
            path = max(plain, key=lambda name: plain[name].tokens_per_s)
            fastest = plain[path]
            paths = {name: run.tokens_per_s for name, run in plain.items()}
            runs = [run for name, run in plain.items() if name != path]
            off = _cell("off", NO_DRAFT, fastest, fastest, case)
            off |= {"path": path, "paths": paths} | _equality(bench.judge, [fastest, *runs], reference)
            cells.append(off)
            for mode, config, shape in bench.modes(load):
                run = bench.run(config, asked, case, lane=bench.lane)
                cells.append(_cell(mode, shape, run, fastest, case) | _equality(bench.judge, [run], reference))
            say(f"{case.dtype}, T = {temperature}, {load} at once, {'overlapped' if overlap else 'synchronous'}")
    return sorted(cells, key=lambda cell: cell["concurrency"])


def _cell(mode: str, shape: Shape, run: Run, plain: Run, case: Case) -> Cell:
    return {
        "mode": mode,
        "shape": label(shape),
        **asdict(case),
        "tokens_per_s": run.tokens_per_s,
        "speedup": run.tokens_per_s / plain.tokens_per_s,
        "acceptance_length": run.acceptance_length,
        "acceptance_per_position": run.acceptance_per_position,
        "idle_share": run.idle_share,
        "ttft": run.ttft,
        "ttft_ratio": run.ttft / plain.ttft,
        "phase_seconds": run.phase_seconds,
        "requests": len(run.answers),
    }


def _equality(judge: "_Judge", runs: Sequence[Run], reference: Run) -> Cell:
    """Share of requests with the reference's tokens, in the worst of `runs`, and why the others part from it.

    A run may have asked the first of the reference's prompts only.
    """
    mismatches = [divergence for run in runs for divergence in judge.divergences(run, reference)]
    shares = [_identical(run, reference) for run in runs]
    excused = sum(divergence.excused for divergence in mismatches)
    return {
        "identical": min(shares),
        "excused": excused,
        "unexplained": sum(not divergence.explained for divergence in mismatches),
        "mismatches": [asdict(divergence) | {"excused": divergence.excused} for divergence in mismatches],
    }


def _identical(run: Run, reference: Run) -> float:
    pairs = list(zip(run.tokens, reference.tokens, strict=False))
    return sum(own == other for own, other in pairs) / len(pairs)


class _Judge:
    """Says where answers part from the reference, and why; its model is loaded once some do."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._margins: Margins | None = None

    def divergences(self, run: Run, reference: Run) -> "list[Divergence]":
        if run.tokens == reference.tokens[: len(run.answers)]:
            return []
        if self._margins is None:
            from probe.margins import Margins  # torch

            self._margins = Margins(self._config)
        found = [
            self._margins.divergence(answer.request, other, answer.tokens)
            for answer, other in zip(run.answers, reference.tokens, strict=False)
        ]
        return [divergence for divergence in found if divergence is not None]


def _add_speedup_over_fastest(cells: list[Cell]) -> None:
    """Against the plain path of whichever dtype this machine runs fastest."""
    for cell in cells:
        plain = [
            other["tokens_per_s"]
            for other in cells
            if other["mode"] == "off" and all(other[key] == cell[key] for key in ("temperature", "concurrency"))
        ]
        cell["speedup_over_fastest"] = cell["tokens_per_s"] / max(plain)
