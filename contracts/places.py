"""Where files are on this machine: what ships beside the code, what is kept between starts, and how a relative path in
a file is resolved. Used while a deployment is read or a model loaded.
"""

import os
from pathlib import Path

from aerie.contracts.errors import ConfigError

_TOP = Path(__file__).resolve().parents[1]
"""The top of a checkout, or a wheel's package `aerie`, which has the same folders (pyproject.toml, `package-dir`)."""


def is_installed() -> bool:
    """Whether this is a wheel's copy rather than a checkout."""
    return (_TOP / "__init__.py").is_file()


def shipped() -> Path:
    """The folder that has `configs/` and `models/`."""
    return _TOP


def cache() -> Path:
    """The folder for kept files: `build` of a checkout, or Aerie's part of the user's cache (XDG_CACHE_HOME)."""
    if not is_installed():
        return _TOP / "build"
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():  # the XDG specification ignores relative ones
        return named / "aerie"
    home = Path(os.path.expanduser("~"))
    if not home.is_absolute():
        raise ConfigError("this user has no home folder to keep compiled kernels in; set XDG_CACHE_HOME to a folder")
    return home / ".cache" / "aerie"


def find(name: str) -> Path:
    """Resolves a path that a person gives: relative to the working directory, else among what ships."""
    path = Path(name).expanduser()
    ours = shipped() / path
    return ours if not path.exists() and ours.exists() else path


def named_in(folder: Path, name: str) -> str:
    """Resolves a path that a file in `folder` gives: relative to that file, else among what ships. A name that is not a
    path there and may be a hub id stays as it is.
    """
    path = Path(name).expanduser()
    if path.is_absolute():
        return str(path)
    beside = folder / path
    if beside.exists():
        return _short(beside)
    if (shipped() / path).exists():
        return str(shipped() / path)
    may_be_hub_id = len(path.parts) == 2 and ".." not in path.parts and not name.startswith(".")
    return name if may_be_hub_id else _short(beside)


def _short(path: Path) -> str:
    """Without `..`, unless that would change the place: behind some symbolic links it would."""
    short = Path(os.path.normpath(path))
    return str(short if not path.exists() or (short.exists() and short.samefile(path)) else path)
