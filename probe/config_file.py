"""Writes spec.by_load into a config file and keeps every other line, comments included."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from aerie.contracts.config import parse_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.spec_section import LoadShape


def write_by_load(path: Path, entries: Sequence[LoadShape]) -> None:
    """Raises ConfigError, and leaves the file as it was, if it cannot be edited so that only spec.by_load changes."""
    before = path.read_text(encoding="utf-8")
    expected = yaml.safe_load(before) or {}
    data = [entry.model_dump() for entry in entries]
    expected["spec"] = {**(expected.get("spec") or {}), "by_load": data}
    after = _edited(before, data)
    if not _says(after, expected):
        raise ConfigError(
            f"{path} is laid out in a way that cannot be edited; set spec.by_load yourself to {data}",
            param="spec.by_load",
        )
    parse_config(expected)
    path.write_text(after, encoding="utf-8")


def _says(text: str, expected: dict[str, Any]) -> bool:
    try:
        return bool(yaml.safe_load(text) == expected)
    except yaml.YAMLError:
        return False


def _edited(text: str, data: list[dict[str, int]]) -> str:
    lines = text.splitlines()
    spec = _entry(yaml.compose(text.rstrip("\n") + "\n"), "spec")
    if spec is None or not isinstance(spec[1], yaml.MappingNode):  # no section, or an empty one
        if spec is not None:
            del lines[spec[0].start_mark.line]
        return _text([*lines, "spec:", *_block(data, "  ")])
    own = _entry(spec[1], "by_load")
    first, last = (spec[1].start_mark.line,) * 2 if own is None else _span(lines, *own)
    return _text([*lines[:first], *_block(data, " " * spec[1].start_mark.column), *lines[last:]])


def _span(lines: list[str], key: yaml.Node, value: yaml.Node) -> tuple[int, int]:
    """The lines of an entry. A block ends where the next key begins, without the comments and empty lines before it."""
    first, end = key.start_mark.line, value.end_mark.line
    if not isinstance(value, yaml.CollectionNode) or value.flow_style:
        return first, end + 1
    while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):
        end -= 1
    return first, end


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _entry(node: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next(((name, value) for name, value in node.value if name.value == key), None)


def _block(data: list[dict[str, int]], indent: str) -> list[str]:
    """One entry per line."""
    entries = [", ".join(f"{key}: {value}" for key, value in entry.items()) for entry in data]
    return [f"{indent}by_load:", *(f"{indent}  - {{{entry}}}" for entry in entries)]
