"""The output of a probe: a table for people, and one line of JSON with the provenance of its numbers."""

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from aerie.bench import origin
from aerie.contracts.config import Config, masked
from aerie.contracts.labels import labels

Cell = dict[str, Any]

_PIPED_WIDTH = 200
"""Width of tables that no terminal shows, so that nothing is cut."""


def write_report(
    path: Path, cells: Sequence[Cell], config: Config | None, rooms: Sequence[str] = origin.STEPS, **extra: Any
) -> None:
    """Writes `{"cells": [...], "provenance": {...}}` with `extra` beside them; `rooms` are those whose code the cells
    measure. Infinities are written as text.
    """
    report = {"cells": list(cells), **extra, "provenance": provenance(config, rooms)}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")  # a reader, or a stop, finds the file before or after
    unfinished.write_text(json.dumps(finite(report), allow_nan=False) + "\n", encoding="utf-8")
    unfinished.replace(path)


def provenance(config: Config | None, rooms: Sequence[str] = origin.STEPS) -> Cell:
    """Where the cells come from, the versions of torch, the resolved config and what of it is simulated."""
    found = origin.provenance(rooms)
    found["machine"]["torch"] = _version("torch")
    return found | {
        "config": None if config is None else masked(config),
        "labels": {} if config is None else labels(config),
    }


def show(title: str, cells: Sequence[Cell], columns: Mapping[str, str]) -> None:
    """Prints the cells as a table; `columns` maps their keys to formats, as in ".2f"."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for key in columns:
        table.add_column(key.replace("_", " "), justify="left" if columns[key] == "s" else "right")
    for cell in cells:
        table.add_row(*(_written(cell.get(key), form) for key, form in columns.items()))
    Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH).print(table)


def _written(value: Any, form: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(format(item, form) for item in value)
    return str(value) if form == "s" else format(value, form)


def finite(value: Any) -> Any:
    """The value as JSON has it, with infinities as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
