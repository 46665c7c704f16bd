"""A result that is measured piece by piece: what an earlier piece found, if it measured the same. Used by commands."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerie.bench import origin
from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.probe.report import Cell, finite, provenance, write_report


@dataclass(slots=True)
class Pieces:
    """The cells of all pieces, and where each piece comes from. Every piece measures the code of the same rooms."""

    path: Path | None
    config: Config
    cells: list[Cell] = field(default_factory=list)
    earlier: list[Cell] = field(default_factory=list)
    """Command, commit, time and load of the earlier pieces."""
    rooms: Sequence[str] = origin.STEPS
    """Those whose code the cells measure."""
    whole: Callable[[list[Cell]], dict[str, Any]] = lambda cells: {}
    """Lists of the file beside `cells`, made of the cells of all pieces."""

    def add(self, cells: list[Cell]) -> None:
        """Keeps the file up to date, so that a stop loses one addition at most."""
        self.cells += cells
        self.write()

    def write(self) -> None:
        if self.path is not None:
            whole = self.whole(self.cells)
            write_report(self.path, self.cells, self.config, self.rooms, **whole, earlier=self.earlier)


def resumed(path: Path | None, config: Config, rooms: Sequence[str] = origin.STEPS) -> Pieces:
    """What `path` holds; nothing if there is no such file.

    Raises ConfigError if it was measured with other code, weights or settings, or on another machine.
    """
    if path is None:
        raise ConfigError("--resume continues the file of --json; name one")
    if not path.exists():
        return Pieces(path, config, rooms=rooms)
    report = json.loads(path.read_text(encoding="utf-8"))
    before, now = report["provenance"], json.loads(json.dumps(finite(provenance(config, rooms))))
    other = [name for name in ("measured", "config") if before.get(name) != now[name]]
    if _machine(before) != _machine(now):
        other.append("machine")
    if other:
        raise ConfigError(
            f"--resume cannot continue {path}: it was measured with another {' and another '.join(other)}; name "
            f"another file, or remove it"
        )
    return Pieces(path, config, report["cells"], [*report.get("earlier", []), _of_one(before)], rooms)


def _machine(provenance: dict[str, Any]) -> tuple[Any, ...]:
    """What decides how fast steps are, beside code and config."""
    machine, words = provenance["machine"], provenance["command"].split()
    marches = [word for word in words if word.startswith("AERIE_MARCH=")]
    return machine["cpu"], machine["cores"], machine.get("torch"), marches, "--random-head" in words


def _of_one(provenance: dict[str, Any]) -> Cell:
    own = {name: provenance.get(name) for name in ("command", "commit", "dirty", "at")}
    return own | {"load_average": provenance["machine"]["load_average"]}
