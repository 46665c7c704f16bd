"""The calls on a GPU that is lent for minutes: a stage that hangs costs itself alone, and what is left is whole."""

import importlib.util
import json
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.house import HOME


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(HOME / "scripts"))
    spec = importlib.util.spec_from_file_location("gpu_call", HOME / "scripts/gpu_call.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def run(
    module: ModuleType, out: Path, *stages: tuple[str, int, str], needs: dict[str, str] | None = None, **how: Any
) -> bool:
    made = [module.Stage(name, seconds, command, (needs or {}).get(name)) for name, seconds, command in stages]
    call = module.Call(tuple(made), out, {"word": "spoken"}, **({"seconds": 600.0} | how))
    return bool(call.run())


def ends(out: Path) -> dict[str, str]:
    return {cell["stage"]: cell["ended"] for cell in json.loads((out / "summary.json").read_text())["stages"]}


def archived(out: Path) -> dict[str, str]:
    with tarfile.open(out / "results.tar.gz") as archive:
        files = [member for member in archive.getmembers() if member.isfile()]
        return {member.name: archive.extractfile(member).read().decode() for member in files}  # type: ignore[union-attr]


def test_stages_leave_one_archive_and_a_summary(module: ModuleType, tmp_path: Path) -> None:
    assert run(module, tmp_path, ("one", 60, "echo {word}; echo 7 > {out}/cells.json"), ("two", 60, "true"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.tar.gz", "summary.json"]
    assert archived(tmp_path) == {
        "results/cells.json": "7\n", "results/logs/one.log": "spoken\n", "results/logs/two.log": "",
    }  # fmt: skip
    assert ends(tmp_path) == {"one": "passed", "two": "passed"}


def test_a_hang_costs_its_own_stage_and_ends_with_its_children(module: ModuleType, tmp_path: Path) -> None:
    """Also with one in a session of its own, as servers are started."""
    hanging = "sleep 1000 & setsid sleep 2000 & sleep 3000"
    assert not run(module, tmp_path, ("hangs", 2, hanging), ("after", 60, "echo here"))
    assert ends(tmp_path) == {"hangs": "took longer than 2 s", "after": "passed"}
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [command for command in commands if command in (b"sleep\x001000\0", b"sleep\x002000\0")]


def test_what_a_passed_stage_leaves_running_is_ended(module: ModuleType, tmp_path: Path) -> None:
    leaving = "setsid sleep 4000 > /dev/null 2>&1 & echo $! > {out}/child"
    assert run(module, tmp_path, ("leaves", 60, leaving))
    child = Path(f"/proc/{int(archived(tmp_path)['results/child'])}/stat")
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_the_end_of_a_failed_log_is_printed(
    module: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not run(module, tmp_path, ("breaks", 60, "seq 1 40; exit 2"), ("passes", 60, "echo quiet"))
    printed = capsys.readouterr().out.splitlines()
    assert "40" in printed and "26" in printed and not {"25", "quiet"} & set(printed)


def test_stages_that_time_nothing_run_at_once(module: ModuleType, tmp_path: Path) -> None:
    """Each waits for the other; what comes after them waits for both."""
    meets = "touch {{out}}/{own}; until test -e {{out}}/{other}; do sleep 0.01; done"
    stages = [
        module.Stage(own, 30, meets.format(own=own, other=other), beside=True)
        for own, other in (("one", "two"), ("two", "one"))
    ]
    after = module.Stage("after", 30, "test -e {out}/one && test -e {out}/two")
    assert module.Call((*stages, after), tmp_path, {}, seconds=90.0).run()
    assert set(ends(tmp_path).values()) == {"passed"}


def test_a_large_file_is_left_out_of_the_archive(module: ModuleType, tmp_path: Path) -> None:
    """What comes back may weigh a few megabytes."""
    large = module._LARGEST + 1
    assert run(module, tmp_path, ("writes", 60, f"head -c {large} /dev/zero > {{out}}/large; echo 1 > {{out}}/small"))
    assert set(archived(tmp_path)) == {"results/small", "results/logs/writes.log"}


def test_what_needs_a_failed_stage_is_left_out(module: ModuleType, tmp_path: Path) -> None:
    stages = ("ready", 60, "exit 3"), ("needy", 60, "true"), ("free", 60, "true")
    assert not run(module, tmp_path, *stages, needs={"needy": "ready"})
    assert ends(tmp_path) == {
        "ready": "failed with code 3", "needy": "left out: ready failed with code 3", "free": "passed",
    }  # fmt: skip


def test_a_call_ends_in_its_time(module: ModuleType, tmp_path: Path) -> None:
    """By a clock of its own: the first stage takes all of the time."""
    now = iter([0.0, *[1.0] * 4, *[99.0] * 20])
    assert not run(
        module, tmp_path, ("first", 60, "true"), ("second", 60, "true"), seconds=100.0, clock=lambda: next(now)
    )
    assert ends(tmp_path)["second"] == "left out: the call's time is over"


def test_results_are_renewed_while_a_stage_runs(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage ends once it has seen itself in the archive; nothing but results lies beside it."""
    monkeypatch.setattr(module, "RENEWED", 0.05)
    seen = f"until tar tzf {tmp_path}/results.tar.gz 2>/dev/null | grep -q early; do :; done"
    wait = f"echo early > {{out}}/early; {seen}; test ! -e {tmp_path}/early"
    assert run(module, tmp_path, ("watches", 120, wait))


@pytest.mark.parametrize("rehearsal", [True, False])
def test_every_call_fits_its_time_and_names_what_is_there(module: ModuleType, rehearsal: bool) -> None:
    words = module.words(rehearsal, HOME / ".venv") | {"out": "out"}
    for stages in module.CALLS.values():
        names = [stage.name for stage in stages]
        assert len(names) == len(set(names)) and stages[0].name == "setup"
        for stage in stages:
            command = stage.command.format(**words)
            assert stage.seconds <= module.CALL_SECONDS
            assert stage.needs is None or stage.needs in names[: names.index(stage.name)]
            paths = [word for word in command.split() if word.startswith(("scripts/", "configs/", "tests/"))]
            assert all((HOME / path).exists() for path in paths), paths
    assert len(module.CALLS) == 3 and module.CALL_SECONDS < 600
