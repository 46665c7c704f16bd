"""JSON Lines: reading tolerates a few bad lines, and a torn last line is detected."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerie.contracts.errors import AerieError

_SHOWN = 20


@dataclass(slots=True)
class BadLines:
    """Unreadable lines of all files together; more than `limit` are an error with their numbers."""

    limit: int
    found: list[tuple[str, int, str]] = field(default_factory=list)
    """File, line number from 1, reason."""

    def add(self, path: Path, number: int, reason: str) -> None:
        self.found.append((str(path), number, reason))

    def check(self) -> None:
        """Raises AerieError if there were too many. Called at the end, so that the error lists all of them."""
        if len(self.found) > self.limit:
            raise AerieError(
                f"{len(self.found)} bad lines; at most {self.limit} are skipped (prompts.bad_lines):\n{self.listed()}"
            )

    def listed(self) -> str:
        lines = [f"  {path}:{number}: {reason}" for path, number, reason in self.found[:_SHOWN]]
        more = len(self.found) - len(lines)
        return "\n".join(lines) + (f"\n  and {more} more" if more else "")


def read_objects(path: Path, bad: BadLines) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of each line. Empty lines are skipped; lines without a JSON object go to `bad`."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                bad.add(path, number, f"no UTF-8: {error.reason} at byte {error.start}")
                continue
            except (ValueError, RecursionError) as error:
                bad.add(path, number, f"no JSON: {str(error)[:120]}")
                continue
            if isinstance(value, dict):
                yield number, value
            else:
                bad.add(path, number, f"no object but a {type(value).__name__}")


def read_own(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a file that a stage wrote."""
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield json.loads(line)


def as_line(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, sort_keys=True) + "\n").encode("utf-8", "surrogatepass")


def write_lines(path: Path, values: Iterable[dict[str, Any]]) -> None:
    """Writes a new file; the caller's folder becomes visible only when it is complete."""
    with path.open("wb") as file:
        for value in values:
            file.write(as_line(value))


def mend(path: Path) -> list[dict[str, Any]]:
    """The records of a journal; cuts off a last line that a kill tore."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return [json.loads(line) for line in whole.split(b"\n")[:-1]]
