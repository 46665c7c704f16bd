"""The sources as the tests of their shape read them. Used by test_architecture and test_steps."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HOME = Path(__file__).parent.parent
MAY_IMPORT: dict[str, set[str]] = {
    "contracts": set(),
    "engine": {"contracts"},
    "bridge": {"contracts", "engine"},
    "spec": {"contracts", "engine"},
    "native": {"contracts", "engine", "spec"},
    "scheduler": {"contracts"},
    "server": {"contracts"},
    "train": {"contracts", "engine", "spec"},
    "probe": {"bench", "contracts", "engine", "spec", "native", "scheduler"},
    "bench": set(),
    "aerie": {"contracts", "engine", "bridge", "spec", "native", "scheduler", "server", "train", "probe", "bench"},
}
"""Imports go down only; the composition root sees all. A room is imported as `aerie.ROOM`."""


FLOORS: dict[str, str] = {
    "engine": "device cuda device_time bindings state sampling grammars kernels attention model memory step lanes "
    "sglang build",
    "spec": "heads checkpoints trees drafters round kernels worker build",
    "native": "march compilation library once pages numbers products layers trials choice rounding kernels structs "
    "layouts worker",
    "server": "http text parsing dispatch telemetry service openai responses playground routes app run",
    "train": "progress optimization heads demo pipeline experiments __main__",
}
"""The parts of a room, lowest first: each imports only parts before it."""
HEADERS = (
    "vectors.h amx.h dots.h crew.h columns.h kernels.h outputs.h functions.h tile.h amx_rows.h amx_sums.h scores.h "
    "transposed.h model.h plans.h step.h head.h"
)
"""The headers of native/src, lowest first: each includes only headers before it."""


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
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module.count(".") < 2 else [module]
            yield from ((node.lineno, name) for name in (names if module.split(".")[0] == "aerie" else [module]))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            yield from ((node.lineno, str(part.value)) for part in node.args[:1] if isinstance(part, ast.Constant))


def room_of(name: str) -> str | None:
    """The room of an imported module, and None for another project's."""
    first, _, rest = name.partition(".")
    inner = rest.partition(".")[0]
    if first != "aerie":
        return None
    return inner if inner in MAY_IMPORT else "aerie"


Rule = Callable[[Source], Iterator[str]]
"""From a source to complaints."""


def complaints(rule: Rule) -> str:
    return "\n".join(complaint for source in sources() for complaint in rule(source))
