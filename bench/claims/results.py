"""The committed results: their cells, what a question selects of them, and what is wrong with a file.

A *question* is a file below bench/results, as in `compare.json`, and conditions: `mode=chain`, `load=1|4`,
`target!=SGLang`. A list of the file other than `cells` stands behind it, as in `ablation.json#means`. Names with blanks
are quoted.
"""

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from aerie.bench.origin import WHEN, digests

Cell = dict[str, Any]
EXCEPTIONS = "exceptions.yaml"
LEAST_SECONDS, LEAST_REQUESTS = 10.0, 200
"""Of a published cell of a sweep."""


_TIME = re.compile("second|speed|_per_s$|_(s|ms|us)$")
"""In the names of times, rates and their ratios."""


class ClaimError(Exception):
    """What is wrong with a claim and where."""


class Results:
    """The results of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._records = cache(self._read)

    def select(self, question: str) -> list[Cell]:
        """The cells that meet all conditions. Raises ClaimError if there are none."""
        try:
            source, *conditions = shlex.split(question)
        except ValueError as error:
            raise ClaimError(f"{question!r}: {error}") from None
        name, _, part = source.partition("#")
        records = self._records(name)
        if part and not all(isinstance(record.get(part), list) for record in records):
            raise ClaimError(f"{name} has no list {part!r}")
        cells = [cell for record in records for cell in record.get(part or "cells", [record])]
        found = [cell for cell in cells if all(_meets(cell, condition) for condition in conditions)]
        if not found:
            raise ClaimError(f"{question!r} selects nothing of {len(cells)} cells")
        return found

    def origin(self, name: str) -> Cell:
        """The provenance of the file's last record."""
        origin: Cell = self._records(name)[-1].get("provenance", {})
        return origin

    def faults(self, name: str) -> dict[str, str]:
        """What keeps a figure of this file from being a claim, by the word that an exception has for it."""
        records = self._records(name)
        origins = [record.get("provenance", {}) for record in records]
        found = {}
        trees = [one.get("dirty", "-dirty" in (one.get("commit") or "-dirty")) for one in origins]
        if None in trees:
            found["dirty"] = "was made from copied sources"
        if True in trees:
            found["dirty"] = "was made from a changed tree"
        if not all(one.get("measured") for one in origins if _own(one)):
            found["unchecked"] = "cannot be checked, as it holds no digests of what it measured"
        measured = {path: value for one in origins for path, value in (one.get("measured") or {}).items()}
        if not any(_timed(record) for record in records):
            measured = {path: value for path, value in measured.items() if path not in WHEN}
        if changed := sorted(path for path, value in measured.items() if digests([path]).get(path) != value):
            found["stale"] = f"is older than {', '.join(changed)}"
        swept = [record for record in records if record.get("status") == "ok"]
        if any(one["window_seconds"] < LEAST_SECONDS or one["requests"] < LEAST_REQUESTS for one in swept):
            found["short"] = f"has cells of less than {LEAST_SECONDS:g} s or {LEAST_REQUESTS} requests"
        return found

    def exceptions(self) -> dict[str, dict[str, Any]]:
        """By file: `since`, the `faults` that are excused, `why`, and the command that would `renew` it."""
        path = self.folder / EXCEPTIONS
        return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.exists() else {}

    def _read(self, name: str) -> list[Cell]:
        try:
            text = (self.folder / name).read_text(encoding="utf-8")
        except OSError:
            raise ClaimError(f"the result {name} is missing") from None
        return [json.loads(line) for line in text.splitlines()] if name.endswith(".jsonl") else [json.loads(text)]


def at(cell: Cell, key: str) -> Any:
    """The value at a key, as in `ttft.p50` or `acceptance_per_position.0`; None where a cell has none."""
    value: Any = cell
    for name in key.split("."):
        if isinstance(value, list) and name.isdigit():
            value = value[int(name)] if int(name) < len(value) else None
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value


def published(results: Results, names: set[str], *, strict: bool) -> Iterator[str]:
    """Faults of results that pages use and no exception excuses.

    `strict` includes results that are older than what they measured, and exceptions that nothing needs any more.
    """
    excused = results.exceptions()
    for name in sorted(names):
        faults, allowed = results.faults(name), set(excused.get(name, {}).get("faults", ()))
        yield from (f"{name} {faults[word]}" for word in faults if word not in allowed and (strict or word != "stale"))
        needless = sorted(allowed - set(faults)) if strict else []
        yield from (f"{EXCEPTIONS} excuses {name} for {word!r}, which it is not" for word in needless)
    for name, exception in excused.items():
        if strict and name not in names:
            yield f"{EXCEPTIONS} excuses {name}, which no page uses"
        if missing := {"since", "faults", "why", "renew"} - set(exception):
            yield f"{EXCEPTIONS}: {name} lacks {', '.join(sorted(missing))}"


def _timed(part: Any) -> bool:
    """Whether a result holds a time, a rate or a ratio of those, and not only what was accepted."""
    if isinstance(part, list):
        return any(_timed(one) for one in part)
    if not isinstance(part, dict):
        return False
    return any(key != "provenance" and (_TIME.search(key) is not None or _timed(value)) for key, value in part.items())


def _own(origin: Cell) -> bool:
    """Whether the result measures this checkout; one of another server has no digests."""
    return origin.get("measured") != {}


def _meets(cell: Cell, condition: str) -> bool:
    key, unequal, wanted = condition.partition("!=") if "!=" in condition else condition.partition("=")
    value = at(cell, key)
    return any(_same(value, text) for text in wanted.split("|")) != (unequal == "!=")


def _same(value: Any, text: str) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(text) == value
        except ValueError:
            return False
    return str(value).lower() == text.lower()
