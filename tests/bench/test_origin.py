"""Where results come from: commands as typed, commits, changed trees, and digests of what was measured."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from aerie.bench import origin
from aerie.bench.config import Target
from aerie.bench.targets import Server


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed checkout with a room, a config and the weights that it names."""
    files = {"engine/step.py": "step = 1\n", "configs/a.yaml": "model: {path: ../models/a}\n", "models/a/w": "weights"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "First"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(origin, "HOME", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["aerie", "probe", "compare", "configs/a.yaml"])
    return tmp_path


def test_code_config_and_weights_are_measured(checkout: Path) -> None:
    before = origin.provenance(["engine", "nowhere"])["measured"]
    assert set(before) == {"engine", "configs/a.yaml", "models/a"}
    for name in ("engine/step.py", "models/a/w"):
        (checkout / name).write_text("other")
    (checkout / "configs/a.yaml").write_text("model: {path: ../models/a}   # the same setting\n")
    after = origin.digests(before)
    assert {path for path in before if before[path] != after[path]} == {"engine", "models/a"}


def test_a_new_file_and_a_new_name_change_a_digest(checkout: Path) -> None:
    seen = [origin.digests(["engine"])]
    (checkout / "engine/other.py").write_text("")
    seen.append(origin.digests(["engine"]))
    (checkout / "engine/other.py").rename(checkout / "engine/another.py")
    seen.append(origin.digests(["engine"]))
    (checkout / "engine/another.pyc").write_text("compiled")
    assert len({found["engine"] for found in seen}) == 3
    assert origin.digests(["engine"]) == seen[-1], "compiled files do not count"


def test_a_folder_that_takes_no_part_changes_no_digest(checkout: Path) -> None:
    (checkout / "engine/part").mkdir()
    (checkout / "engine/part/one.py").write_text("1")
    paths = ["engine", "engine without part"]
    before = origin.digests(paths)
    (checkout / "engine/part/one.py").write_text("2")
    middle = origin.digests(paths)
    assert {path for path in paths if before[path] != middle[path]} == {"engine"}
    (checkout / "engine/step.py").write_text("other")
    assert not before.items() & origin.digests(paths).items()


def test_a_changed_tree_is_dirty_and_a_new_result_is_not(checkout: Path) -> None:
    assert origin.dirty(checkout) is False
    results = checkout / "bench/results/x.json"
    results.parent.mkdir(parents=True)
    results.write_text("1")
    subprocess.run(["git", "-C", str(checkout), "add", "."], check=True)
    assert origin.dirty(checkout) is False, "a command that writes several results stays clean"
    (checkout / "engine/step.py").write_text("step = 2\n")
    assert origin.dirty(checkout) is True
    assert origin.commit(checkout) is not None


def test_outside_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AERIE_COMMIT", raising=False)
    assert origin.commit(tmp_path) is None and origin.dirty(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert origin.commit(origin.HOME) is None, "nor where git is missing"
    monkeypatch.setenv("AERIE_COMMIT", "53ea902")
    assert origin.commit(tmp_path) == "53ea902", "copied sources have a commit by name"


@pytest.mark.parametrize(
    ("module", "argv", "typed"),
    [
        ("aerie.__main__", ["/x/aerie/__main__.py", "probe", "tune", "a b"], "aerie probe tune 'a b'"),
        (None, ["/x/.venv/bin/aerie", "bench"], "aerie bench"),
        ("aerie.experiments", ["/x/experiments.py", "losses"], "python -m aerie.experiments losses"),
        (None, ["/x/scripts/agreement.py", "--json", "f"], "python agreement.py --json f"),
        (None, [str(origin.HOME / "scripts/agreement.py"), "--json", "f"], "python scripts/agreement.py --json f"),
    ],
)
def test_a_command_is_as_typed(
    module: str | None, argv: list[str], typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = None if module is None else SimpleNamespace(name=module)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.delenv("AERIE_MARCH", raising=False)
    assert origin.provenance()["command"] == typed
    monkeypatch.setenv("AERIE_MARCH", "x86-64-v3")
    assert origin.provenance()["command"] == f"AERIE_MARCH=x86-64-v3 {typed}", "which decides what is measured"


def test_a_server_is_measured_with_its_code_and_its_config(checkout: Path) -> None:
    own = Server(Target(name="own", command="aerie serve configs/a.yaml server.port={port}"), checkout)
    assert set(own.provenance()["measured"]) == {"engine", "configs/a.yaml", "models/a"}
    (checkout / "configs/a.yaml").rename(checkout / "configs/b.yaml")
    other = Server(Target(name="other", command="llama-server --port {port}"), checkout)
    assert other.provenance()["measured"] == {}
