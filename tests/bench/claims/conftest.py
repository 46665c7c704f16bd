"""A checkout with one result, one page, and the code that the result measured."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerie.bench import origin
from aerie.bench.claims.results import Results

CELLS = [
    {"mode": "off", "rows": 1, "speed": 100.0, "share": 0.031, "shape": "none"},
    {"mode": "chain", "rows": 1, "speed": 150.0, "share": 0.052, "shape": "3,1,4"},
    {"mode": "off", "rows": 8, "speed": 1250.0, "share": 0.5, "shape": "none"},
    {"mode": "chain", "rows": 8, "speed": 1000.0, "share": None, "shape": "3,1,4"},
]

Publish = Callable[..., None]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(origin, "HOME", tmp_path)
    for name in ("bench/results", "docs", "engine"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "engine/step.py").write_text("step = 1\n")
    (tmp_path / "README.md").write_text("Nothing is measured.\n")
    return tmp_path


@pytest.fixture
def results(home: Path) -> Results:
    return Results(home / "bench/results")


@pytest.fixture
def publish(home: Path) -> Publish:
    """Writes a sound result; keywords replace parts of its provenance, `cells` its cells, and `totals` is one more
    list.
    """

    def write(
        name: str = "a.json",
        cells: list[dict[str, Any]] = CELLS,
        totals: list[dict[str, Any]] | None = None,
        **parts: Any,
    ) -> None:
        known = {"command": "aerie probe a", "commit": "0123456789", "dirty": False, "at": "2026-11-23T01:02:03+00:00"}
        measured = {"measured": origin.digests(["engine"]), "machine": {"cores": 1, "load_average": 0.5}}
        report = {"cells": cells, "means": cells[:1], "provenance": known | measured | parts}
        if totals is not None:
            report["totals"] = totals
        (home / "bench/results" / name).write_text(json.dumps(report))

    return write
