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
    "spec": {"contracts", "engine"},
    "native": {"contracts", "engine", "spec"},
    "scheduler": {"contracts"},
    "server": {"contracts"},
    "train": {"contracts", "engine", "spec"},
    "probe": {"contracts", "engine", "spec", "native", "scheduler"},
    "bench": set(),
    "aerie": {"contracts", "engine", "spec", "native", "scheduler", "server", "train", "probe", "bench"},
}
"""Imports go down only; the composition root sees all."""


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


Rule = Callable[[Source], Iterator[str]]
"""From a source to complaints."""


def complaints(rule: Rule) -> str:
    return "\n".join(complaint for source in sources() for complaint in rule(source))
