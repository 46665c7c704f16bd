"""Targets that vary: every setting is tried, each load gets its fastest, and the report says what was started."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from aerie.bench.cells import Cell, read_cells, read_trials
from aerie.bench.config import SweepError, parse_sweep
from aerie.bench.reports.report import write_report
from aerie.bench.sweep import run_sweep
from aerie.bench.tuning import chosen, shortened, trials
from tests.bench.test_sweep import HOME, run
from tests.patience import end_of, quickest, until

FAKE = HOME / "tests/bench/fake_command.py"


def sweep_of(*targets: dict, **more):
    small = {"load": {"concurrency": [1]}, "requests": 4, "rounds": 2, "max_tokens": 8, "together": False}
    tuning = {"requests": 3, "rounds": 2}
    return parse_sweep({"targets": list(targets), "tuning": tuning} | small | more, "test")


def varied(record: Path, **more) -> dict:
    command = f"{sys.executable} {FAKE} {{port}} {{fastness}} {record}"
    return {"name": "varied", "command": command, "vary": {"fastness": [2, 10]}} | more


def test_each_load_keeps_the_setting_that_was_fastest_there() -> None:
    sweep = sweep_of(
        {"name": "a", "command": "a {port} {n} {kind}", "vary": {"n": [1, 2], "kind": ["", "--x"]}},
        {"name": "b", "url": "http://127.0.0.1:9"},
        load={"concurrency": [1, 4]},
    )
    assert len(trials(sweep)) == 8 and {trial.cell.target for trial in trials(sweep)} == {"a"}
    rates = {(1, ""): (10, 20), (1, "--x"): (12, 5), (2, ""): (11, 21), (2, "--x"): (99, 99)}
    tried = [
        {"target": "a", "mode": "concurrency", "load": load, "setting": {"n": n, "kind": kind}}
        | ({"status": "failed"} if (n, kind) == (2, "--x") else {"status": "ok", "output_tokens_per_s": rate})
        for (n, kind), own in rates.items()
        for load, rate in zip((1.0, 4.0), own, strict=True)
    ]
    found = chosen(sweep, tried)
    assert found["a", "concurrency", 1.0] == (("n", 1), ("kind", "--x"))
    assert found["a", "concurrency", 4.0] == (("n", 2), ("kind", ""))
    assert found["b", "concurrency", 1.0] == ()


@pytest.mark.parametrize(("cores", "tried"), [(8, [2, 4, 8]), (4, [2, 4]), (1, [2])])
def test_no_more_threads_than_cores_are_tried(cores: int, tried: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerie.bench.tuning.allowed_cores", lambda: cores)
    sweep = sweep_of({"name": "a", "command": "a {port} {threads}", "vary": {"threads": [2, 4, 8]}})
    assert [dict(trial.setting)["threads"] for trial in trials(sweep)] == tried


def test_a_trial_is_as_long_as_its_tuning_says_and_not_as_a_cell() -> None:
    sweep = sweep_of({"name": "a", "command": "a {port}"}, seconds=11.0, tuning={"requests": 3, "seconds": 4.0})
    assert (short := shortened(sweep)).requests == 3 and short.rounds == 2 and short.seconds == 4.0
    assert short.load == sweep.load and short.max_tokens == sweep.max_tokens


def test_a_setting_fills_command_and_environment() -> None:
    (target,) = sweep_of(
        {
            "name": "a",
            "command": "a {port} --json '{\"n\": 1}' {flag}",
            "environment": {"THREADS": "{n}"},
            "vary": {"n": [3], "flag": [""]},
        }
    ).targets
    filled = target.with_setting(target.settings()[0])
    assert filled.command == "a {port} --json '{\"n\": 1}'" and filled.environment == {"THREADS": "3"}
    with pytest.raises(SweepError, match="which vary names"):
        sweep_of({"name": "a", "command": "a {port}", "vary": {"m": [1]}})


def test_a_sweep_tries_settings_then_measures_the_best_and_says_its_flags(tmp_path: Path) -> None:
    sweep = sweep_of(varied(tmp_path / "pids"))

    def chosen_fastness() -> int:
        """Of a whole sweep, negative as what is least is best."""
        out = Path(tempfile.mkdtemp(dir=tmp_path))
        run(sweep, out)
        tried = read_trials(out)
        assert [(line["setting"]["fastness"], line["status"]) for line in tried] == [(2, "ok"), (10, "ok")]
        (cell,) = read_cells(out)
        best = max(tried, key=lambda line: line["output_tokens_per_s"])["setting"]["fastness"]
        assert cell["setting"] == {"fastness": best} and cell["server"]["command"].split()[-2] == str(best)
        write_report(out)
        report = (out / "report.md").read_text()
        assert f"* varied: {sys.executable} {FAKE} {{port}} {best} {tmp_path / 'pids'}" in report
        assert "| varied | fastness 2 |" in report and "| varied | fastness 10 |" in report
        seen: list[Cell] = []
        run(sweep, out, seen)
        assert not seen, "neither trials nor cells are measured again"
        return -best

    assert quickest(chosen_fastness, -2) == -10


def test_some_targets_only(tmp_path: Path) -> None:
    sweep = sweep_of(varied(tmp_path / "pids"), {"name": "other", "command": f"{sys.executable} {FAKE} {{port}} 10"})
    run_sweep(sweep, tmp_path / "out", lambda cell, count: lambda ended: None, print, only=["other"])
    assert {cell["target"] for cell in read_cells(tmp_path / "out")} == {"other"} and not read_trials(tmp_path / "out")
    with pytest.raises(SweepError, match="unknown target 'nobody'; the sweep has 'varied', 'other'"):
        run_sweep(sweep, tmp_path / "out2", lambda cell, count: lambda ended: None, print, only=["nobody"])
    assert not (tmp_path / "out2").exists()


def test_a_command_that_is_not_installed_says_how_to_get_it(tmp_path: Path) -> None:
    said = run(sweep_of({"name": "a", "command": "no-such-server {port}", "install": "make it"}), tmp_path / "out")
    assert "no no-such-server is found. To install it: make it" in said[0]


def test_a_killed_sweep_leaves_no_server_behind_and_goes_on(tmp_path: Path) -> None:
    """The real thing: SIGKILL in the midst of a cell, which the server never answers, then the same command again."""
    cells = tmp_path / "out/cells.jsonl"
    target = {"name": "own", "command": f"{sys.executable} {FAKE} {{port}} 5 {tmp_path / 'pids'} {cells}"}
    data = {"targets": [target], "load": {"concurrency": [1, 2]}, "requests": 6, "rounds": 2, "max_tokens": 8}
    (tmp_path / "sweep.yaml").write_text(json.dumps(data))
    words = ["bench", "sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "aerie", *words]
    first = subprocess.Popen(command, cwd=HOME, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: cells.exists() and cells.read_text().endswith("\n"), "no cell is written")
    first.send_signal(signal.SIGKILL)
    first.wait()
    (pid,) = (tmp_path / "pids").read_text().split()
    end_of(int(pid))
    assert len(read_cells(tmp_path / "out")) == 1
    subprocess.run(command, cwd=HOME, check=True, capture_output=True, env=os.environ | {"COLUMNS": "80"})
    assert [(cell["load"], cell["status"]) for cell in read_cells(tmp_path / "out")] == [(1, "ok"), (2, "ok")]
    assert len(cells.read_text().splitlines()) == 2, "the first cell was not measured again"
