"""`make setup` names what is missing, with the package that has it. Pythons are stand-ins: nothing is installed."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.house import HOME, sources

PYTHON = """#!/bin/sh
case "$*" in
    *version_info*) exit {old} ;;
    -V) echo "Python 3.9.1" ;;
    *ensurepip*) exit {no_venv} ;;
    "-m venv"*) /bin/mkdir -p "$3/bin" && /bin/cp "$0" "$3/bin/python" ;;
    "-m pip --version") exit {no_pip} ;;
    "-m pip install"*) echo "$*" && exit {refused} ;;
esac
"""
FINE = {"old": 0, "no_venv": 0, "no_pip": 0, "refused": 0}


def setup(folder: Path, **wrong: int) -> subprocess.CompletedProcess[str]:
    """Of a machine with nothing but this Python and a shell."""
    python = folder / "python3"
    python.write_text(PYTHON.format(**(FINE | wrong)))
    python.chmod(0o755)
    given = {"PYTHON": "python3", "VENV": str(folder / "venv"), "TORCH_INDEX": "", "PATH": str(folder)}
    return subprocess.run(
        ["/bin/sh", str(HOME / "scripts/install.sh")], env=given, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("old", "python3 is Python 3.9.1; Aerie needs Python 3.11 or newer"),
        ("no_venv", "no venv module; install it (Debian: python3-venv)"),
        ("no_pip", "has no pip; install it (Debian: python3-pip)"),
        ("refused", "no C compiler for a package that has no wheel here; install one (Debian: build-essential"),
    ],
)
def test_what_is_missing_is_named_with_its_package(tmp_path: Path, wrong: str, said: str) -> None:
    done = setup(tmp_path, **{wrong: 1})
    assert done.returncode == 1 and said in done.stderr


def test_a_machine_without_python_is_told_so(tmp_path: Path) -> None:
    given = os.environ | {"PYTHON": "python9", "VENV": str(tmp_path), "TORCH_INDEX": ""}
    done = subprocess.run(
        ["sh", "scripts/install.sh"], cwd=HOME, env=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "no python9; install Python 3.11 or newer (Debian: python3)" in done.stderr


def test_with_everything_there_the_pinned_packages_are_installed(tmp_path: Path) -> None:
    done = setup(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "-c constraints.txt" in done.stdout and "-e .[dev]" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert f". {tmp_path / 'venv'}/bin/activate" in last, "how to get at the command"
    assert ". .venv/bin/activate" in (HOME / "README.md").read_text(encoding="utf-8").partition("\n## ")[2]


def test_nothing_tells_people_to_install_another_project_s_package() -> None:
    """`aerie` is taken in the public index; until the project's own name is published, a checkout is installed."""
    project = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "aerie-serve" and list(project["scripts"]) == ["aerie"]
    pages = [*HOME.glob("*.md"), *HOME.glob("docs/**/*.md"), *HOME.glob("scripts/*"), HOME / "docker/Dockerfile"]
    texts = {page: page.read_text(encoding="utf-8") for page in pages if page.is_file()}
    texts |= {HOME / source.place: source.text for source in sources()}
    assert not [page for page, text in texts.items() if re.search(r"aerie\[|install '?aerie\b(?!-serve)", text)]
