"""Options with several comma-separated values. Used by the commands; an error names the invalid value."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from aerie.contracts.errors import AerieError

_T = TypeVar("_T")


def integers(text: str) -> list[int]:
    return _each(text, int, "whole numbers")


def numbers(text: str) -> list[float]:
    return _each(text, float, "numbers")


def words(text: str, known: Sequence[str]) -> list[str]:
    """Reads a list of words, all of which must be in `known`."""
    given = text.split(",")
    for word in given:
        if word not in known:
            raise AerieError(f"{word!r} is none of {', '.join(known)}")
    return given


def _each(text: str, read: Callable[[str], _T], kind: str) -> list[_T]:
    try:
        return [read(part) for part in text.split(",")]
    except ValueError:
        raise AerieError(f"{text!r} is not a list of {kind}; write them as in 1,4,16") from None
