"""Peers in parts: cut, joined, imported, and left out where something is missing, without an error."""

import importlib
import importlib.util
import json
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.house import HOME

USES = """
import absent_here as absent
from absent_here.parts import Some
from pydantic import BaseModel


class Holds(BaseModel):
    part: Some | None = None
    other: absent.Other | None = None
"""


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """With one peer, whose wheel has a module, a library that stays behind, and one that it needs."""
    spec = importlib.util.spec_from_file_location("gpu_peers", HOME / "scripts/gpu_peers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.syspath_prepend(HOME / "scripts")
    monkeypatch.setitem(__import__("sys").modules, "gpu_peers", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    stubs = ("absent_here/__init__.py", "absent_here/parts.py")
    toy = importlib.import_module("gpu_peer_sets").Peer(
        "toy_peer", ("toy==1", "other"), ("toy_peer/large*",), "the large one", stubs
    )
    monkeypatch.setattr(module, "PEERS", {"toy": toy})
    wheels = tmp_path / "toy/wheels"
    wheels.mkdir(parents=True)
    with zipfile.ZipFile(wheels / "toy-1.whl", "w") as wheel:
        wheel.writestr("toy_peer/__init__.py", USES)
        wheel.writestr("toy_peer/large.so", "x" * 1000)
        wheel.writestr("toy_peer/noise.txt", str([number * 7919 % 1009 for number in range(3000)]))
    return module


def test_a_cut_set_is_joined_and_imported(peers: ModuleType, tmp_path: Path) -> None:
    assert peers.cut("toy", most=1000) > 2
    parts = sorted(path.name for path in (tmp_path / "toy").glob("part-*"))
    assert parts == sorted(json.loads((tmp_path / "toy/manifest.json").read_text()))
    assert all(path.stat().st_size <= 1000 for path in (tmp_path / "toy").glob("part-*"))
    assert peers.importable("toy") is None, "with stubs for what it imports and does not use"
    assert (tmp_path / "toy/site/toy_peer/noise.txt").is_file()
    assert not (tmp_path / "toy/site/toy_peer/large.so").exists()


def test_what_is_missing_is_said(peers: ModuleType, tmp_path: Path) -> None:
    assert "fetch and cut it" in peers.importable("toy")
    peers.cut("toy", most=1000)
    (tmp_path / "toy/part-01").unlink()
    assert "part-01 of" in peers.importable("toy")
    cells = peers.measure("toy", tmp_path, "1", 1.0)
    assert cells == [
        {
            "peer": "toy",
            "pins": ("toy==1", "other"),
            "left_out": "the large one",
            "not_measured": cells[0]["not_measured"],
        }
    ]
    assert "missing or broken" in cells[0]["not_measured"]


def test_an_import_that_fails_says_why(peers: ModuleType, tmp_path: Path) -> None:
    site = tmp_path / "toy/site/toy_peer"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text("import a_module_that_is_nowhere\n")
    assert peers.importable("toy") == "ModuleNotFoundError: No module named 'a_module_that_is_nowhere'"
