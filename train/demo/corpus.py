"""Collects the docstrings of the running Python's standard library, which the demo target learns some of.

The text differs between Python releases, so the result is pinned in `train/data/` and this module runs only to renew
it: `python -m aerie.train text train/data/docstrings.jsonl.gz`. Importing a standard module runs its code, so the few
that open a window, a browser or an interpreter are left out.
"""

import gzip
import importlib
import inspect
import json
import pkgutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

LONGEST = 1200
"""Characters kept per docstring; the demo model's context has no room for more."""

_UNFIT = frozenset(
    {"antigravity", "distutils", "ensurepip", "genericpath", "idlelib", "lib2to3", "nt", "ntpath", "posix", "pydoc"}
    | {"pydoc_data", "test", "this", "tkinter", "turtle", "turtledemo"}
)
_KNOWN_AS = {"posixpath": "os.path"}
_LENDERS = {"os": ("nt", "posix"), "os.path": ("genericpath", "posixpath")}
"""Modules whose members are known under another module's name."""
_TESTS = frozenset({"test", "tests"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One documented name: its dotted path, its kind (module, class, method, function) and its docstring."""

    name: str
    kind: str
    text: str


def collect() -> list[Entry]:
    """Every public documented name of the standard library, in the order of module names, each once."""
    found: dict[tuple[str, str], Entry] = {}
    for module in _modules():
        for entry in _entries(module):
            found.setdefault((entry.name, entry.text), entry)
    return list(found.values())


def _modules() -> Iterator[ModuleType]:
    for name in sorted(sys.stdlib_module_names - _UNFIT):
        if name.startswith("_") or (module := _import(name)) is None:
            continue
        yield module
        for child in pkgutil.iter_modules(getattr(module, "__path__", [])):
            if child.name.startswith("_") or child.name in _TESTS:
                continue
            if (submodule := _import(f"{name}.{child.name}")) is not None:
                yield submodule


def _import(name: str) -> ModuleType | None:
    """The module, or None if this platform lacks it or its import fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except Exception:  # noqa: BLE001  a module of another platform may fail in any way; it is left out
            return None


def _entries(module: ModuleType) -> Iterator[Entry]:
    path = _KNOWN_AS.get(module.__name__, module.__name__)
    if _documented(module):
        yield _entry(path, "module", module.__doc__)
    for name, member in vars(module).items():
        if name.startswith("_") or not _belongs(member, path):
            continue
        if inspect.isclass(member):
            yield from _class_entries(f"{path}.{name}", member)
        elif callable(member) and _documented(member):
            yield _entry(f"{path}.{name}", "function", member.__doc__)


def _class_entries(path: str, owner: type) -> Iterator[Entry]:
    if _documented(owner):
        yield _entry(path, "class", owner.__doc__)
    for name, member in vars(owner).items():
        if not name.startswith("_") and callable(member) and _documented(member):
            yield _entry(f"{path}.{name}", "method", member.__doc__)


def _documented(member: object) -> bool:
    doc = getattr(member, "__doc__", None)
    return isinstance(doc, str) and bool(doc.strip())


def _belongs(member: object, path: str) -> bool:
    """Whether the member belongs to the module itself or to one of its private parts."""
    home = getattr(member, "__module__", None) or path
    return path.startswith(home) or home.removeprefix("_") == path or home in _LENDERS.get(path, ())


def _entry(name: str, kind: str, doc: str | None) -> Entry:
    return Entry(name, kind, inspect.cleandoc(doc or "").strip()[:LONGEST].rstrip())


def read(path: Path) -> list[Entry]:
    """Reads the pinned entries."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [Entry(**json.loads(line)) for line in lines]


def write(path: Path, entries: list[Entry]) -> None:
    """Writes one JSON object per line, gzipped with a fixed timestamp so that equal text gives equal bytes."""
    body = "".join(json.dumps(asdict(entry), ensure_ascii=False) + "\n" for entry in entries)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(body.encode(), mtime=0))
