"""Writes spec.by_load into a config file and leaves every other line, comments included, as it was."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from contracts.config import LoadShape, load_config
from contracts.errors import ConfigError


def write_by_load(path: Path, entries: Sequence[LoadShape]) -> None:
    """Raises ConfigError where the file cannot be edited so that only spec.by_load changes; then it stays as it was."""
    before = path.read_text(encoding="utf-8")
    expected = yaml.safe_load(before) or {}
    data = [entry.model_dump() for entry in entries]
    expected["spec"] = {**(expected.get("spec") or {}), "by_load": data}
    after = _edited(before, data)
    if yaml.safe_load(after) != expected:
        raise ConfigError(
            f"{path} is laid out in a way that cannot be edited; set spec.by_load yourself to {data}",
            param="spec.by_load",
        )
    path.write_text(after, encoding="utf-8")
    load_config(path)


def _edited(text: str, data: list[dict[str, int]]) -> str:
    lines = text.splitlines()
    spec = _entry(yaml.compose(text), "spec")
    if spec is None or not isinstance(spec[1], yaml.MappingNode):  # no section, or an empty one
        if spec is not None:
            del lines[spec[0].start_mark.line]
        return "\n".join([*lines, "spec:", *_block(data, "  ")]) + "\n"
    indent = " " * spec[1].start_mark.column
    own = _entry(spec[1], "by_load")
    if own is None:
        first = last = spec[1].start_mark.line
    else:
        first = own[0].start_mark.line
        end = own[1].end_mark
        last = end.line if end.column == 0 or not lines[end.line : end.line + 1] else end.line + 1
        last = _without_trailing(lines, first, last)
    return "\n".join([*lines[:first], *_block(data, indent), *lines[last:]]) + "\n"


def _without_trailing(lines: list[str], first: int, last: int) -> int:
    """A block's end mark lies where the next key begins: lines between that are comments or empty are not the block's;
    and the next key's own line, where the block ended beside it, is not either.
    """
    while last > first + 1 and (not lines[last - 1].strip() or lines[last - 1].lstrip().startswith("#")):
        last -= 1
    return last


def _entry(node: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next(((name, value) for name, value in node.value if name.value == key), None)


def _block(data: list[dict[str, int]], indent: str) -> list[str]:
    """One entry a line."""
    entries = [", ".join(f"{key}: {value}" for key, value in entry.items()) for entry in data]
    return [f"{indent}by_load:", *(f"{indent}  - {{{entry}}}" for entry in entries)]
