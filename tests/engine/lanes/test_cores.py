"""The CPUs of a process: its affinity and the quotas of its control groups, in files laid out as Linux does."""

from pathlib import Path

import pytest

from aerie.contracts.config import Config
from aerie.engine.lanes import cores
from aerie.engine.lanes.cores import usable_cores
from aerie.engine.lanes.place import lane_threads


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(cores, "_CGROUPS", tmp_path)
    monkeypatch.setattr(cores, "_OWN", tmp_path / "own")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.mark.parametrize(("quota", "threads"), [("max", 7), ("50000", 1), ("150000", 1), ("300000", 2), ("900000", 7)])
def test_a_quota_bounds_the_threads(groups: Path, quota: str, threads: int) -> None:
    write(groups / "own", "0::/")
    write(groups / "cpu.max", f"{quota} 100000")
    assert lane_threads(Config()) == threads


def test_the_group_above_may_be_the_narrower_one(groups: Path) -> None:
    write(groups / "own", "0::/aerie.slice/lane.scope")
    write(groups / "aerie.slice" / "lane.scope" / "cpu.max", "600000 100000")
    write(groups / "aerie.slice" / "cpu.max", "250000 100000")
    assert usable_cores() == 2.5


def test_groups_of_the_first_version(groups: Path) -> None:
    write(groups / "own", "4:cpuset:/a\n3:cpu,cpuacct:/a\n0::/a")
    write(groups / "cpu" / "a" / "cpu.cfs_quota_us", "350000")
    write(groups / "cpu" / "a" / "cpu.cfs_period_us", "100000")
    write(groups / "cpu" / "cpu.cfs_quota_us", "-1")
    write(groups / "cpu" / "cpu.cfs_period_us", "100000")
    assert usable_cores() == 3.5 and lane_threads(Config()) == 2


def test_without_control_groups_affinity_alone_counts(groups: Path) -> None:
    assert usable_cores() == 8 and lane_threads(Config()) == 7
