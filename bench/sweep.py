"""Runs a sweep: starts targets, measures cells in turn, resumes after a kill, and continues after a server dies."""

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from aerie.bench.cells import Cell, Results, Trial, Watch, planned, read_trials
from aerie.bench.config import Setting, Sweep, SweepError
from aerie.bench.loads.workloads import find
from aerie.bench.measuring import NoFigures, measure
from aerie.bench.origin import provenance
from aerie.bench.targets import Server
from aerie.bench.tuning import chosen, shortened, trials


def run_sweep(sweep: Sweep, out: Path, watch: Watch, say: Callable[[str], None], only: Collection[str] = ()) -> Results:
    """Measures what `out` lacks, for all targets or for those named.

    Raises SweepError for what cannot be measured at all.
    """
    check(sweep, only)
    results = Results(out, sweep)
    left_trials, left_cells = work_left(sweep, results, only)
    run = _Run(results, watch, say)
    trying = [_Work(trial.cell, trial.setting, partial(results.add_trial, trial)) for trial in left_trials]
    for _, group in groupby(trying, key=lambda work: (work.cell.target, work.setting)):
        run.group(shortened(sweep), list(group))
    choices = chosen(sweep, read_trials(out))
    settings = [choices[cell.target, cell.mode, cell.load] for cell in left_cells]
    measuring = [
        _Work(cell, setting, partial(results.add, cell, setting))
        for cell, setting in zip(left_cells, settings, strict=True)
    ]
    for _, group in groupby(measuring, key=lambda work: None if sweep.together else work.alone):
        run.group(sweep, list(group))
    return results


def work_left(sweep: Sweep, results: Results, only: Collection[str] = ()) -> tuple[list[Trial], list[Cell]]:
    """Trials and cells that the folder lacks; failed ones are measured again."""
    wanted = set(only or (target.name for target in sweep.targets))
    tried, done = results.tried(), results.done()
    return (
        [trial for trial in trials(sweep) if trial.cell.target in wanted and trial not in tried],
        [cell for cell in planned(sweep) if cell.target in wanted and cell not in done],
    )


def check(sweep: Sweep, only: Collection[str]) -> None:
    """Raises SweepError if a workload or a target does not exist."""
    for name in sweep.workloads:
        find(name)
    known = [target.name for target in sweep.targets]
    if unknown := sorted(set(only) - set(known)):
        raise SweepError(f"unknown target {unknown[0]!r}; the sweep has {', '.join(map(repr, known))}")


@dataclass(frozen=True, slots=True)
class _Work:
    """A cell to measure with a setting of its target; `keep` takes the status and the figures."""

    cell: Cell
    setting: Setting
    keep: Callable[..., None]

    @property
    def alone(self) -> tuple[int, str, Setting]:
        """The key that cells share if they run on one start of a server that has the machine to itself."""
        return self.cell.repeat, self.cell.target, self.setting

    @property
    def label(self) -> str:
        values = "".join(f", {word} {value}" for word, value in self.setting)
        return f"{self.cell.target}, {self.cell.workload}, {self.cell.mode} {self.cell.load:g}{values}"


@dataclass(frozen=True, slots=True)
class _Run:
    results: Results
    watch: Watch
    say: Callable[[str], None]

    def group(self, sweep: Sweep, works: list[_Work]) -> None:
        """Measures cells whose targets run side by side. A target that cannot start fails only its own cells."""
        with ExitStack() as running:
            servers: dict[tuple[str, Setting], Server | str] = {}
            for work in works:
                key = (work.cell.target, work.setting)
                if key not in servers:
                    servers[key] = self._started(running, sweep, *key)
            for work in works:
                server = servers[work.cell.target, work.setting]
                self._cell(sweep, work, server)

    def _started(self, running: ExitStack, sweep: Sweep, name: str, setting: Setting) -> Server | str:
        """The started server, or why it did not start."""
        target = sweep.target(name).with_setting(setting)
        try:
            return running.enter_context(Server(target, self.results.logs))
        except SweepError as error:
            self.say(str(error))
            return str(error)

    def _cell(self, sweep: Sweep, work: _Work, server: Server | str) -> None:
        if isinstance(server, str):
            self._fail(work, server)
            return
        if not server.alive:
            self.say(f"{work.cell.target} has ended; it is started again")
        try:
            figures: dict[str, Any] = measure(sweep, work.cell, server, self.watch)
        except NoFigures as error:
            self.say(f"{work.label}: {error}")
            self._fail(work, str(error))
            return
        work.keep("ok", **figures)

    def _fail(self, work: _Work, reason: str) -> None:
        work.keep("failed", reason=reason, provenance=provenance())
