"""The cells of a sweep in measuring order, and the folder that keeps their results.

Folder: `sweep.json` (the sweep and its digest), `cells.jsonl` (a line for each finished cell), `tuning.jsonl` (a line
for each trial of a setting), `logs/` (of targets). The folder of another sweep is rejected, so that no report mixes
two.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aerie.bench.config import Setting, Sweep, SweepError


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement: a target under one load of one workload. `mode` is concurrency or rate."""

    target: str
    workload: str
    mode: str
    load: float
    repeat: int


Watch = Callable[[Cell, int], Callable[[int], None]]
"""Called with each cell and its number of conversations before it begins; returns a function that takes how many have
ended.
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """A short measurement of one setting of a target with `vary`. The repeat of its cell is 0."""

    cell: Cell
    setting: Setting


def planned(sweep: Sweep) -> list[Cell]:
    """Targets alternate within a repeat and reverse their order in the next, so that drift of the machine affects them
    equally.
    """
    names = [target.name for target in sweep.targets]
    cells = []
    for repeat in range(sweep.repeats):
        order = names if repeat % 2 == 0 else names[::-1]
        steps = [(workload, *load) for workload in sweep.workloads for load in sweep.loads]
        if sweep.together:
            cells += [Cell(name, *step, repeat) for step in steps for name in order]
        else:
            cells += [Cell(name, *step, repeat) for name in order for step in steps]
    return cells


class Results:
    """The results folder of a sweep, new or resumed."""

    def __init__(self, folder: Path, sweep: Sweep) -> None:
        self.folder = folder
        head = folder / "sweep.json"
        if head.exists():
            if (known := json.loads(head.read_text(encoding="utf-8"))["digest"]) != sweep.digest():
                raise SweepError(f"{folder} holds another sweep ({known}, not {sweep.digest()}); choose another --out")
        elif folder.exists() and any(folder.iterdir()):
            raise SweepError(f"{folder} is not empty and holds no sweep; choose another --out")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            content = {"digest": sweep.digest(), "sweep": _without_keys(sweep)}
            head.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def done(self) -> set[Cell]:
        """Cells that need no measurement; failed ones are measured again."""
        return {_key(line) for line in read_cells(self.folder) if line["status"] == "ok"}

    def tried(self) -> set[Trial]:
        return {_trial(line) for line in read_trials(self.folder) if line["status"] == "ok"}

    def add(self, cell: Cell, setting: Setting, status: str, **figures: Any) -> None:
        self._append("cells.jsonl", cell, setting, status, figures)

    def add_trial(self, trial: Trial, status: str, **figures: Any) -> None:
        self._append("tuning.jsonl", trial.cell, trial.setting, status, figures)

    def _append(self, name: str, cell: Cell, setting: Setting, status: str, figures: dict[str, Any]) -> None:
        path = self.folder / name
        line = json.dumps({**asdict(cell), "setting": dict(setting), "status": status, **figures}, allow_nan=False)
        whole = not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")  # a kill may have torn the last line
        with path.open("a", encoding="utf-8") as file:
            file.write(("" if whole else "\n") + line + "\n")


def read_sweep(folder: Path) -> dict[str, Any]:
    """The sweep of a results folder, as plain data."""
    try:
        sweep_json: dict[str, Any] = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))["sweep"]
    except OSError:
        raise SweepError(f"{folder} holds no sweep; name the folder that `aerie bench sweep --out` was given") from None
    return sweep_json


def read_cells(folder: Path) -> list[dict[str, Any]]:
    """The last line of every cell; a line that a kill tore is left out."""
    return list({_key(line): line for line in _lines(folder / "cells.jsonl")}.values())


def read_trials(folder: Path) -> list[dict[str, Any]]:
    """The last line of every trial of a setting."""
    return list({_trial(line): line for line in _lines(folder / "tuning.jsonl")}.values())


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def _key(line: dict[str, Any]) -> Cell:
    return Cell(**{name: line[name] for name in Cell.__slots__})


def _trial(line: dict[str, Any]) -> Trial:
    return Trial(_key(line), tuple(line["setting"].items()))


def _without_keys(sweep: Sweep) -> dict[str, Any]:
    data = sweep.model_dump(mode="json")
    for target in data["targets"]:
        target["api_key"] = None if target["api_key"] is None else "***"
    return data
