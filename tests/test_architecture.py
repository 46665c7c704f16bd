"""The house keeps its shape: who imports whom, what stays out of where, and how long things may be.

Every rule is a function from sources to complaints, so that each is also shown to catch a planted violation.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import FLOORS, HEADERS, HOME, MAY_IMPORT, Rule, Source, complaints, imported, room_of

ONLY_IN: dict[str, set[str]] = {
    "torch": {"engine", "spec", "native", "train", "probe", "aerie"},
    "fastapi": {"server"},
    "starlette": {"server"},
    "uvicorn": {"server"},
    "flashinfer": {"engine"},
    "llguidance": {"server", "engine"},
    "sglang": {"engine", "bridge"},
    "triton": {"engine", "spec"},
    "transformers": {"server", "train", "probe"},
    "pickle": set(),
    "cloudpickle": set(),
    "dill": set(),
    "marshal": set(),
    "shelve": set(),
}
LINES, STATEMENT_LINES = 250, 60
BANNED_WORDS = {"utils", "util", "helper", "helpers", "manager", "common", "misc"}


def upward_imports(source: Source) -> Iterator[str]:
    for line, name in imported(source.tree):
        if name.split(".")[0] in MAY_IMPORT and name.split(".")[0] != "aerie":
            yield f"{source.place}:{line} imports {name}, which is installed as aerie.{name}"
        room = room_of(name)
        if room is not None and room != source.room and room not in MAY_IMPORT[source.room]:
            yield f"{source.place}:{line} imports {name}; {source.room} may import {sorted(MAY_IMPORT[source.room])}"


def upward_inside(source: Source) -> Iterator[str]:
    """Imports of a part of the same room that lies above."""
    floors = FLOORS.get(source.room, "").split()
    part = Path(source.place).parts[1].removesuffix(".py")
    if not floors or part == "__init__":
        return
    if part not in floors:
        yield f"{source.place}: {part!r} is missing among the parts of {source.room} (FLOORS in tests/house.py)"
        return
    for line, name in imported(source.tree):
        parts = name.split(".")
        if parts[:2] != ["aerie", source.room] or len(parts) == 2:
            continue
        other = parts[2]
        if other in floors and floors.index(other) > floors.index(part):
            yield f"{source.place}:{line} imports {name}; {part} lies below {other}"


def upward_includes(name: str, text: str) -> list[str]:
    """Headers that a C++ header includes although they lie above it."""
    floors = HEADERS.split()
    included = re.findall(r'(?m)^#include "(\w+\.h)"', text)
    return [f"{name} includes {other}" for other in included if floors.index(other) >= floors.index(name)]


def misplaced_libraries(source: Source) -> Iterator[str]:
    for line, name in imported(source.tree):
        allowed = ONLY_IN.get(name.split(".")[0])
        if allowed is not None and source.room not in allowed:
            yield f"{source.place}:{line} imports {name}, which belongs to {sorted(allowed) or 'nobody'}"


def pickled(source: Source) -> Iterator[str]:
    """Ways to pickle that need no import of it."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if name == "torch.load" and given.get("weights_only") != "True":
            yield f"{source.place}:{node.lineno} calls torch.load without weights_only=True, which runs what it reads"
        if given.get("allow_pickle") == "True":
            yield f"{source.place}:{node.lineno} allows pickles in {name}"
        if name.rpartition(".")[2] in ("send_pyobj", "recv_pyobj"):
            yield f"{source.place}:{node.lineno} calls {name}, which pickles"


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


RULES: tuple[Rule, ...] = (
    upward_imports,
    upward_inside,
    misplaced_libraries,
    pickled,
    oversized,
    empty_names,
    unexplained,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_obeys(rule: Rule) -> None:
    assert not complaints(rule), complaints(rule)


@pytest.mark.parametrize(
    ("rule", "place", "text"),
    [
        (upward_imports, "engine/model/decoder.py", "from aerie.spec.worker import SpecWorker"),
        (upward_imports, "server/app.py", "def f():\n    import aerie.scheduler.loop"),
        (
            upward_imports,
            "scheduler/loop.py",
            "if TYPE_CHECKING:\n    from aerie.engine.model.target import TargetModel",
        ),
        (upward_imports, "bench/loads/load.py", "import aerie.contracts.messages"),
        (upward_imports, "spec/worker.py", "from contracts.step import StepPlan"),
        (upward_imports, "scheduler/loop.py", "importlib.import_module('aerie.spec.worker')"),
        (upward_inside, "engine/state/kv_pool.py", "from aerie.engine.step.batch import Batch"),
        (upward_inside, "spec/trees/tree.py", "from aerie.spec import worker"),
        (upward_inside, "engine/extra/new.py", ""),
        (misplaced_libraries, "scheduler/policy.py", "import torch.nn"),
        (misplaced_libraries, "engine/lanes/cpu.py", "from pickle import loads"),
        (misplaced_libraries, "aerie/serve.py", "def f():\n    from fastapi import FastAPI"),
        (misplaced_libraries, "spec/drafters/eagle3.py", "import flashinfer"),
        (pickled, "engine/model/weights.py", "torch.load(path)"),
        (pickled, "engine/lanes/frames.py", "np.load(path, allow_pickle=True)"),
        (pickled, "server/dispatch/client.py", "await socket.send_pyobj(message)"),
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


def test_headers_include_only_headers_below() -> None:
    headers = sorted((HOME / "native/src").glob("*.h"))
    assert {path.name for path in headers} == set(HEADERS.split())
    assert not [found for path in headers for found in upward_includes(path.name, path.read_text(encoding="utf-8"))]
    assert upward_includes("vectors.h", '#include "model.h"')


def test_grammars_have_one_door_in_the_server_and_one_in_the_engine() -> None:
    doors = {
        str(path.relative_to(HOME))
        for room in ("server", "engine", "bridge", "contracts")
        for path in (HOME / room).rglob("*.py")
        if any(name.split(".")[0] == "llguidance" for _, name in imported(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert doors == {"server/text/grammars.py", "engine/grammars/matcher.py"}


def test_the_front_end_starts_without_torch() -> None:
    """What an import table cannot see: that no library brings torch along into the API and scheduler processes."""
    import subprocess
    import sys

    code = "import sys, aerie.server.run, aerie.scheduler.process; sys.exit(int('torch' in sys.modules or 'transformers' in sys.modules))"  # noqa: E501
    assert subprocess.run([sys.executable, "-c", code], cwd=HOME, check=False).returncode == 0
