"""spec.by_load is written, and nothing else of a file changes."""

from pathlib import Path

import pytest
import yaml

from aerie.contracts.config import load_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.spec_section import LoadShape
from aerie.probe.config_file import write_by_load

TABLE = [LoadShape(rows=4, depth=5, topk=4, nodes=16), LoadShape(rows=32, depth=2, topk=1, nodes=3)]
LINES = ["  by_load:", "    - {rows: 4, depth: 5, topk: 4, nodes: 16}", "    - {rows: 32, depth: 2, topk: 1, nodes: 3}"]
FILES = {
    "no section": ("# a comment\nmodel:\n  path: here  # where\n", -1),
    "an empty section": ("model:\n  path: here\nspec:\n", -1),
    "no table": ("spec:  # drafts\n  head: none\n\n# the end\nmodel:\n  path: here\n", 1),
    "an empty table": ("spec:\n  head: none\n  by_load: []  # none yet\n  depth: 3\n", 2),
    "a table at the end": ("spec:\n  head: none\n  by_load:\n    - rows: 1\n      depth: 1\n      nodes: 2", 2),
    "a table in the middle": (
        "spec:\n  by_load:\n  - {rows: 9, depth: 1, nodes: 2}\n  # of the head\n  head: none\nmodel:\n  path: here\n",
        1,
    ),
    "a flow over lines": ("spec:\n  by_load: [\n    {rows: 9, depth: 1, nodes: 2},\n  ]\n  head: none\n", 1),
}


@pytest.mark.parametrize("name", FILES)
def test_only_the_table_changes(tmp_path: Path, name: str) -> None:
    text, place = FILES[name]
    path = tmp_path / "config.yaml"
    path.write_text(text)
    before = yaml.safe_load(text)
    write_by_load(path, TABLE)
    written = path.read_text()
    after = yaml.safe_load(written)
    assert load_config(path).spec.by_load == tuple(TABLE)
    assert after.pop("spec") == (before.pop("spec", None) or {}) | {"by_load": [e.model_dump() for e in TABLE]}
    assert after == before
    lines = written.splitlines()
    assert [line for line in text.splitlines() if "#" in line and "none yet" not in line] == [
        line for line in lines if "#" in line
    ]
    at = len(lines) - 3 if place < 0 else place
    assert lines[at : at + 3] == LINES
    write_by_load(path, TABLE)
    assert path.read_text() == written


def test_a_layout_that_cannot_be_edited_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("spec: {head: none}\n")
    with pytest.raises(ConfigError, match=r"cannot be edited; set spec\.by_load yourself"):
        write_by_load(path, TABLE)
    assert path.read_text() == "spec: {head: none}\n"
