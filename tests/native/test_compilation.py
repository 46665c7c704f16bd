"""The compilation of the kernels: a whole library or none, and nothing left beside it."""

import logging
import subprocess
from pathlib import Path

import pytest

from aerie.native.compilation import compiled

WRITES = """#!/bin/sh
for last; do :; done
touch "$TMPDIR/scratch"
echo "$@" >> "{calls}"
{end}
echo compiled > "$last"
"""


def compiler(folder: Path, end: str = "") -> list[str]:
    program = folder / "c++"
    program.write_text(WRITES.format(calls=folder / "calls", end=end))
    program.chmod(0o755)
    return [str(program), "-O3"]


def test_sources_are_compiled_one_by_one_and_linked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    library = tmp_path / "kept/library.so"
    assert compiled(compiler(tmp_path), [Path("a.cpp"), Path("b.cpp")], library, seconds=60, idle_seconds=60) == library
    assert library.read_text() == "compiled\n" and list(library.parent.iterdir()) == [library]
    *each, link = (tmp_path / "calls").read_text().splitlines()
    assert sorted(call.split()[2] for call in each) == ["a.cpp", "b.cpp"] and "-shared" in link
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("compiling the kernels") and said[1].startswith("compiled in ") and len(said) == 2


@pytest.mark.parametrize(
    ("end", "seconds", "error"),
    [("echo no >&2; exit 1", 60, subprocess.CalledProcessError), ("sleep 1000", 0.1, subprocess.TimeoutExpired)],
)
def test_what_fails_or_takes_too_long_leaves_nothing(
    tmp_path: Path, end: str, seconds: float, error: type[Exception]
) -> None:
    with pytest.raises(error):
        compiled(
            compiler(tmp_path, end), [Path("a.cpp")], tmp_path / "kept/library.so", seconds=seconds, idle_seconds=60
        )
    assert not list((tmp_path / "kept").iterdir())


def test_the_limit_is_for_all_sources_together(tmp_path: Path) -> None:
    """After it nothing else is started: six sources do not take six times as long."""
    with pytest.raises(subprocess.TimeoutExpired):
        sources = [Path(f"{name}.cpp") for name in "abcdef"]
        compiled(compiler(tmp_path, "sleep 1000"), sources, tmp_path / "kept/library.so", seconds=0.3, idle_seconds=60)
    assert len((tmp_path / "calls").read_text().splitlines()) <= 2


@pytest.mark.parametrize("program", ["sleep 1000", "sleep 1000 & wait"])
def test_a_compiler_that_does_not_compute_is_not_waited_for(tmp_path: Path, program: str) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        compiled(
            compiler(tmp_path, program), [Path("a.cpp")], tmp_path / "kept/library.so", seconds=1000, idle_seconds=0.2
        )
