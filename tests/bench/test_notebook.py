"""The notebook runs from its first cell to its last, on two fake servers in place of the demo pair."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.bench.test_sweep import HOME, servers

NOTEBOOK = HOME / "notebooks/benchmark.ipynb"
__all__ = ["servers"]


def test_the_notebook_runs_to_its_plots(servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    _, urls = servers
    targets = [{"name": name, "url": url} for name, url in urls.items()]
    small = {"targets": targets, "load": {"concurrency": [1, 2]}, "requests": 3, "rounds": 2, "max_tokens": 8}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(small))
    shown: list[str] = []
    display = ModuleType("IPython.display")
    display.Image, display.display = str, shown.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.chdir(NOTEBOOK.parent)
    names: dict[str, object] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
            if "SWEEP" in names and "cells" not in names:
                names |= {"SWEEP": tmp_path / "sweep.yaml", "OUT": tmp_path / "out"}
    assert [Path(path).stem for path in shown] == ["tpot", "throughput", "speedup", "acceptance"]
    assert all(Path(path).stat().st_size > 10_000 for path in shown)
    printed = capsys.readouterr().out
    assert "| concurrency | target |" in printed and "at once:" in printed


def test_the_notebook_is_committed_without_outputs() -> None:
    assert all(not cell.get("outputs") for cell in json.loads(NOTEBOOK.read_text())["cells"])
