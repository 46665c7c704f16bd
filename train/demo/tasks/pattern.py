"""A phrasing with gaps that is filled to ask and read to check, so that no exercise needs a key of its answers."""

import re
from collections.abc import Mapping

_GAP = re.compile(r"\{(\w+)\}")


class Pattern:
    """Text with gaps such as `{name}`. A gap is read as the shortest text that lets the rest fit."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.gaps = tuple(_GAP.findall(text))
        parts = _GAP.split(text)
        self._regex = re.compile(
            "".join(f"(?P<{part}>.+?)" if index % 2 else re.escape(part) for index, part in enumerate(parts)), re.DOTALL
        )

    def fill(self, values: Mapping[str, object]) -> str:
        return self.text.format_map(values)

    def read(self, text: str) -> dict[str, str] | None:
        """What stands in the gaps, where the whole text fits."""
        found = self._regex.fullmatch(text)
        return found.groupdict() if found else None


def patterns(*texts: str) -> tuple[Pattern, ...]:
    return tuple(map(Pattern, texts))


def read_any(known: tuple[Pattern, ...], text: str) -> dict[str, str]:
    """The gaps of the first pattern that fits. Raises ValueError where none does."""
    for pattern in known:
        if (found := pattern.read(text)) is not None:
            return found
    raise ValueError(f"no known phrasing: {text!r}")
