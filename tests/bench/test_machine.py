"""What results say of the machine; energy and cost: counters that are there, that wrap around, and that are not."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from aerie.bench import machine
from aerie.bench.cells import Cell
from aerie.bench.config import parse_sweep
from aerie.bench.machine import EnergyMeter
from aerie.bench.measured import Measured
from aerie.bench.measuring import _costs
from aerie.bench.reports.table import rows


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A processor's energy counter as Linux shows it; no GPU."""
    folder = tmp_path / "intel-rapl:0"
    folder.mkdir()
    (folder / "energy_uj").write_text("1000000\n")
    (folder / "max_energy_range_uj").write_text("5000000\n")
    monkeypatch.setattr(machine, "_RAPL", tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return folder / "energy_uj"


def test_joules_are_what_the_counter_gained(package: Path) -> None:
    meter = EnergyMeter()
    package.write_text("3500000\n")
    assert meter.joules() == {"intel-rapl:0": 2.5}
    package.write_text("500000\n")
    assert meter.joules() == {"intel-rapl:0": 4.5}, "it went on from 0 after 5 J"


def test_gpus_count_too(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = iter([0, 7000, 9500])  # the first is asked whether it is there at all
    library = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(reported),
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert EnergyMeter().joules() == {"intel-rapl:0": 0.0, "gpu0": 2.5}


def test_a_machine_without_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_RAPL", tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert EnergyMeter().joules() == "not measured"


def test_energy_and_cost_by_token_and_what_is_saved() -> None:
    sweep = parse_sweep(
        {
            "targets": [
                {"name": "plain", "url": "http://x", "cost_per_hour": 3.6},
                {"name": "fast", "url": "http://y", "cost_per_hour": 3.6},
            ],
            "load": {"concurrency": [1]},
        },
        "test",
    )
    answers = [Measured(sent=0, pieces=[1.0], ended=1, tokens=50) for _ in range(2)]
    lines = []
    for name, rate, joules in (("plain", 100.0, 20.0), ("fast", 250.0, 15.0)):
        cell = Cell(name, "demo", "concurrency", 1.0, 0)
        figures = {"output_tokens_per_s": rate}
        costs = _costs(sweep, cell, answers, {"intel-rapl:0": joules}, figures)
        lines.append(
            {"target": name, "workload": "demo", "mode": "concurrency", "load": 1.0, "repeat": 0, "status": "ok"}
            | {"acceptance_per_position": None, **figures, **costs}
        )
    by_name = {row.target: row.figures for row in rows(lines, "plain")}
    assert by_name["plain"]["joules_per_token"].mean == 0.2 and by_name["plain"]["cost"].mean == pytest.approx(10.0)
    assert by_name["fast"]["cost"].mean == pytest.approx(4.0), "3.6 an hour is a thousandth a second, for 250 tokens"
    assert by_name["fast"]["energy_saved"].mean == pytest.approx(0.25)
    assert by_name["fast"]["time_saved"].mean == pytest.approx(0.6) and "time_saved" not in by_name["plain"]
    unknown = _costs(
        sweep, Cell("plain", "demo", "concurrency", 1.0, 0), answers, "not measured", {"output_tokens_per_s": 0.0}
    )
    assert unknown["joules_per_token"] == unknown["cost_per_million_tokens"] == "not measured"


@pytest.mark.skipif(shutil.which("lscpu") is None, reason="lscpu is not installed")
def test_lscpu_stands_in_it() -> None:
    found = machine.machine()["lscpu"]
    assert {"Architecture", "Model name"} <= found.keys() and all(isinstance(value, str) for value in found.values())


def test_a_machine_without_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = machine.machine()
    assert found["lscpu"] is None and found["cores"] >= 1
