"""The prompts that ship are what the command writes from the pinned docstrings; none is both taught and held out."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from aerie.train.__main__ import app
from tests.train.conftest import CORPUS


@pytest.mark.parametrize(
    ("name", "options"), [("questions", ["--count", "600"]), ("held_out", ["--count", "48", "--held-out"])]
)
def test_the_shipped_prompts_are_the_command_s(name: str, options: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = CliRunner().invoke(app, ["questions", str(out), *options])
    assert done.exit_code == 0, done.output
    assert out.read_bytes() == (CORPUS.parent / f"{name}.jsonl").read_bytes()
    assert CliRunner().invoke(app, ["questions", str(out)]).exit_code == 2


def test_what_is_held_out_is_not_taught() -> None:
    files = (CORPUS.parent / f"{name}.jsonl" for name in ("questions", "held_out"))
    taught, held_out = (set(path.read_text().splitlines()) for path in files)
    assert len(held_out) == 48 and not taught & held_out
