"""Where a result comes from: its command, its commit, the machine, and digests of what it measured.

Every probe and every cell of a sweep stores it. `aerie.bench.claims` compares the digests with the files of today, so a
figure that is older than its code, its config or its weights does not stay in the docs unnoticed.
"""

import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from aerie.bench.machine import machine

HOME = Path(__file__).resolve().parent.parent
"""The checkout; of an installed package the folder that holds it, whose rooms have the same names."""
LANE = ("aerie/lane.py", "aerie/large_pages.py")
"""How a lane starts, which decides its speed."""
STEPS = (*LANE, "contracts", "engine", "native", "scheduler", "spec")
"""The rooms whose code a measurement of whole steps runs."""
FIXED = tuple("scheduler without planner" if room == "scheduler" else room for room in STEPS)
"""The same where shapes are fixed."""
WHEN = ("native", *LANE, *(room for room in (*STEPS, *FIXED) if room.startswith("scheduler")))
"""Those that decide when a token comes and not which: tests hold texts to be the same whatever they do."""
SERVER = ("aerie", *STEPS, "server")
"""The rooms of a server that is measured over HTTP."""
_WITHOUT = " without "
_VARIABLES = ("AERIE_MARCH", "GLIBC_TUNABLES")
"""Of the environment, those that decide what is measured."""
_WRITTEN = (":!bench/results", ":!docs", ":!README.md")
"""What a command that measures writes itself, which does not make its tree dirty."""


def provenance(rooms: Iterable[str] = (), words: Iterable[str] = ()) -> dict[str, Any]:
    """The command, the commit, whether the tree differed from it, the machine and its load, and what was measured.

    `measured` has a digest for each of the rooms, for each config that the command or `words` name, and for each folder
    that such a config names.
    """
    return {
        "command": _command(),
        "commit": commit(HOME),
        "dirty": dirty(HOME),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "measured": digests([*rooms, *_named([*sys.argv[1:], *words])]),
        "machine": machine(),
    }


def commit(folder: Path) -> str | None:
    """Commit of a checkout; what AERIE_COMMIT says, of sources that were copied; None outside a repository."""
    return os.environ.get("AERIE_COMMIT") or _git(folder, "rev-parse", "HEAD")


def dirty(folder: Path) -> bool | None:
    """Whether a tracked file was changed, results and docs left out; None outside a repository, and for copies."""
    if "AERIE_COMMIT" in os.environ:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".", *_WRITTEN)
    return None if changed is None else bool(changed)


def digests(paths: Iterable[str]) -> dict[str, str]:
    """A digest for each file or folder, which are named from the top of the checkout, as in `engine` or
    `scheduler without planner`; a missing one is left out.
    """
    found = {path: path.partition(_WITHOUT) for path in sorted(set(paths))}
    return {path: _digest(HOME / room, part) for path, (room, _, part) in found.items() if (HOME / room).exists()}


def _digest(path: Path, part: str = "") -> str:
    """Of names and contents, of YAML without its comments; compiled and hidden files and the folder `part` do not
    count.
    """
    found = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        place = file.relative_to(path)
        counts = place.parts[:1] != (part,) and not any(name.startswith(".") for name in place.parts)
        if counts and file.is_file() and file.suffix != ".pyc":
            found.update(f"{place.as_posix()}\n{hashlib.sha256(_content(file)).hexdigest()}\n".encode())
    return found.hexdigest()[:16]


def _content(file: Path) -> bytes:
    return json.dumps(_yaml(file)).encode() if file.suffix == ".yaml" else file.read_bytes()


def _yaml(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def _named(words: Sequence[str]) -> Iterator[str]:
    """The checkout's configs among the words, and the folders that these name."""
    for config in (Path(word).resolve() for word in words if word.endswith(".yaml")):
        if config.is_file() and config.is_relative_to(HOME):
            yield config.relative_to(HOME).as_posix()
            for text in _texts(_yaml(config)):
                folder = (config.parent / text).resolve()
                if folder.is_dir() and folder.is_relative_to(HOME) and folder != HOME and "/" in text:
                    yield folder.relative_to(HOME).as_posix()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _command() -> str:
    """As a person types it, behind the variables that were set for it."""
    given = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    return " ".join([*map(shlex.quote, given), _typed()])


def _typed() -> str:
    """`aerie ...`, `python -m MODULE ...` or `python FILE ...`."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    module = main.name.removesuffix(".__main__") if main else None
    script = Path(sys.argv[0])
    if module == "aerie" or (module is None and script.name == "aerie"):
        return shlex.join(["aerie", *sys.argv[1:]])
    if module is not None:
        return shlex.join(["python", "-m", module, *sys.argv[1:]])
    place = script.resolve()
    file = place.relative_to(HOME).as_posix() if place.is_relative_to(HOME) else script.name
    return shlex.join(["python", file, *sys.argv[1:]])


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
