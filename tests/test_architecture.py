"""The house keeps its shape: who imports whom, what stays out of where, and no wait for the device within a step.

Every rule is a function from sources to complaints, so that each is also shown to catch a planted violation.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent
MAY_IMPORT: dict[str, set[str]] = {
    "contracts": set(),
    "engine": {"contracts"},
    "spec": {"contracts", "engine"},
    "scheduler": {"contracts"},
    "server": {"contracts"},
    "train": {"contracts", "engine", "spec"},
    "probe": {"contracts", "engine", "spec", "scheduler"},
    "bench": set(),
    "aerie": {"contracts", "engine", "spec", "scheduler", "server", "train", "probe", "bench"},
}
"""Imports go down only; the composition root sees all."""
ONLY_IN: dict[str, set[str]] = {
    "torch": {"engine", "spec", "train", "probe", "aerie"},
    "fastapi": {"server"},
    "starlette": {"server"},
    "uvicorn": {"server"},
    "flashinfer": {"engine"},
    "sglang": {"engine"},
    "triton": {"engine", "spec"},
    "transformers": {"server", "train", "probe"},
    "pickle": set(),
    "cloudpickle": set(),
    "dill": set(),
    "marshal": set(),
    "shelve": set(),
}
HOST_SYNCS = {"item", "tolist", "numpy", "cpu", "nonzero", "argwhere", "masked_select", "synchronize", "unique"}
MAY_SYNC = {"engine/results.py", "engine/attention/cpu.py"}
"""Where results come to the host, and the backend whose device is the host."""
AT_LOAD = {
    "engine/build.py",
    "engine/model_config.py",
    "engine/weights.py",
    "engine/attention/reference.py",
    "engine/lanes/cpu.py",
    "engine/lanes/frames.py",
    "spec/build.py",
    "spec/formats.py",
    "spec/head_config.py",
    "spec/loader.py",
    "spec/registry.py",
    "spec/vocabulary.py",
}
"""Never inside a step of a device: loading, the oracle, and the host's side of lanes."""
LINES, STATEMENT_LINES = 250, 60
BANNED_WORDS = {"utils", "util", "helper", "helpers", "manager", "common", "misc"}


@dataclass(frozen=True)
class Source:
    """A file as the rules see it; `place` is its path from the root."""

    place: str
    text: str

    @property
    def room(self) -> str:
        return self.place.split("/")[0]

    @property
    def tree(self) -> ast.Module:
        return _parsed(self.text)


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def sources() -> list[Source]:
    return [
        Source(path.relative_to(HOME).as_posix(), path.read_text(encoding="utf-8"))
        for room in MAY_IMPORT
        for path in sorted((HOME / room).rglob("*.py"))
    ]


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import: at the top, in functions, under TYPE_CHECKING, and by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: rooms are imported by their full name"
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            yield from ((node.lineno, str(part.value)) for part in node.args[:1] if isinstance(part, ast.Constant))


def upward_imports(source: Source) -> Iterator[str]:
    for line, name in imported(source.tree):
        room = name.split(".")[0]
        if room in MAY_IMPORT and room != source.room and room not in MAY_IMPORT[source.room]:
            yield f"{source.place}:{line} imports {name}; {source.room} may import {sorted(MAY_IMPORT[source.room])}"


def misplaced_libraries(source: Source) -> Iterator[str]:
    for line, name in imported(source.tree):
        allowed = ONLY_IN.get(name.split(".")[0])
        if allowed is not None and source.room not in allowed:
            yield f"{source.place}:{line} imports {name}, which belongs to {sorted(allowed) or 'nobody'}"


def device_syncs(source: Source) -> Iterator[str]:
    """Calls that wait for a device, in code that runs within its steps."""
    if source.room not in ("engine", "spec") or source.place in MAY_SYNC | AT_LOAD:
        return
    for node in ast.walk(source.tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr in HOST_SYNCS and ast.unparse(node.func.value) not in ("np", "numpy"):
            yield f"{source.place}:{node.lineno} calls .{node.func.attr}(), which waits for the device"
        if node.func.attr == "where" and len(node.args) == 1 and ast.unparse(node.func.value) == "torch":
            yield f"{source.place}:{node.lineno} calls torch.where with one argument, which waits for the device"


def oversized(source: Source) -> Iterator[str]:
    lines = source.text.count("\n")
    if lines > LINES:
        yield f"{source.place} has {lines} lines; split it below {LINES}"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > STATEMENT_LINES:
                yield f"{source.place}:{node.lineno} {node.name} has {length} lines; a screen holds {STATEMENT_LINES}"


def empty_names(source: Source) -> Iterator[str]:
    """Names that say nothing, of files, classes and functions."""
    names = [(1, part) for part in Path(source.place).with_suffix("").parts]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append((node.lineno, node.name))
    for line, name in names:
        words = "".join(f"_{letter}" if letter.isupper() else letter for letter in name).lower().split("_")
        for word in BANNED_WORDS & set(words):
            yield f"{source.place}:{line} {name!r} says {word!r}; say what it is"


def unexplained(source: Source) -> Iterator[str]:
    if source.text.strip() and ast.get_docstring(source.tree) is None:
        yield f"{source.place} has no docstring that says what it is for"


Rule = Callable[[Source], Iterator[str]]
RULES: tuple[Rule, ...] = (upward_imports, misplaced_libraries, device_syncs, oversized, empty_names, unexplained)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_obeys(rule: Rule) -> None:
    complaints = [complaint for source in sources() for complaint in rule(source)]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    ("rule", "place", "text"),
    [
        (upward_imports, "engine/decoder.py", "from spec.worker import SpecWorker"),
        (upward_imports, "server/app.py", "def f():\n    import scheduler.loop"),
        (upward_imports, "scheduler/loop.py", "if TYPE_CHECKING:\n    from engine.target import TargetModel"),
        (upward_imports, "bench/load.py", "import contracts.messages"),
        (upward_imports, "scheduler/loop.py", "importlib.import_module('spec.worker')"),
        (misplaced_libraries, "scheduler/policy.py", "import torch.nn"),
        (misplaced_libraries, "engine/lanes/cpu.py", "from pickle import loads"),
        (misplaced_libraries, "aerie/serve.py", "def f():\n    from fastapi import FastAPI"),
        (misplaced_libraries, "spec/draft.py", "import flashinfer"),
        (device_syncs, "engine/passes.py", "n = lengths.max().item()"),
        (device_syncs, "spec/accept.py", "rows = mask.nonzero()"),
        (device_syncs, "spec/tree.py", "a = torch.where(mask)"),
        (device_syncs, "engine/decoder.py", "torch.cuda.synchronize()"),
        (oversized, "spec/x.py", "def f():\n" + "    a = 1\n" * 61),
        (oversized, "spec/x.py", "a = 1\n" * 251),
        (empty_names, "server/stream_utils.py", ""),
        (empty_names, "server/x.py", "class PageManager: ..."),
        (empty_names, "server/x.py", "def read_helper(): ..."),
        (unexplained, "server/x.py", "a = 1"),
    ],
)
def test_each_rule_catches_a_violation(rule: Rule, place: str, text: str) -> None:
    assert list(rule(Source(place, text)))


def test_the_exceptions_are_files_that_exist() -> None:
    assert all((HOME / place).is_file() for place in MAY_SYNC | AT_LOAD)
    assert len(MAY_SYNC) == 2


def test_the_front_end_starts_without_torch() -> None:
    """What an import table cannot see: that no library brings torch along into the API and scheduler processes."""
    import subprocess
    import sys

    code = "import sys, server.run, scheduler.process; sys.exit(int('torch' in sys.modules or 'transformers' in sys.modules))"  # noqa: E501
    assert subprocess.run([sys.executable, "-c", code], cwd=HOME, check=False).returncode == 0
