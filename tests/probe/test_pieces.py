"""A result in pieces: what continues it must have measured the same."""

import json
from pathlib import Path

import pytest

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.probe.pieces import Pieces, resumed


def test_a_piece_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    path, config = tmp_path / "result.json", Config()
    assert resumed(path, config).cells == []
    Pieces(path, config).add([{"rows": 1}])
    second = resumed(path, config)
    second.add([{"rows": 2}])
    third = resumed(path, config)
    assert third.cells == [{"rows": 1}, {"rows": 2}] and len(third.earlier) == 2
    assert third.earlier[0].keys() == {"command", "commit", "dirty", "at", "load_average"}
    assert len(json.loads(path.read_text())["earlier"]) == 1, "beside its own provenance"


def test_a_file_has_its_whole_after_every_piece(tmp_path: Path) -> None:
    """A stop between two pieces leaves a file that agrees with itself."""
    path = tmp_path / "result.json"
    pieces = Pieces(path, Config())
    pieces.whole = lambda cells: {"totals": [{"rows": sum(cell["rows"] for cell in cells)}]}
    for rows, total in ((1, 1), (2, 3)):
        pieces.add([{"rows": rows}])
        assert json.loads(path.read_text())["totals"] == [{"rows": total}]


def test_a_file_is_named() -> None:
    with pytest.raises(ConfigError, match="--json"):
        resumed(None, Config())


@pytest.mark.parametrize("changed", ["config", "measured", "machine", "command"])
def test_nothing_else_is_continued(tmp_path: Path, changed: str) -> None:
    path, config = tmp_path / "result.json", Config()
    Pieces(path, config).add([{"rows": 1}])
    report = json.loads(path.read_text())
    of = report["provenance"]
    if changed == "machine":
        of["machine"]["cpu"] = "another"
    elif changed == "command":
        of["command"] = "AERIE_MARCH=x86-64-v3 " + of["command"]
    else:
        of[changed] = {}
    path.write_text(json.dumps(report))
    with pytest.raises(ConfigError, match="machine" if changed == "command" else changed):
        resumed(path, config)
