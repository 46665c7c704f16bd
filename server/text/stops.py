"""Stop strings: takes text as it arrives, returns text that can no longer be part of a stop string.

Called by `choice` with the text of one token at a time. The result does not depend on how the text is split: the match
that ends first wins, and among matches that end together the longest.
"""


class StopScanner:
    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = stops
        self._include = include
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the text. Nothing may be pushed after it."""

    def push(self, text: str) -> str:
        """Returns the text that is now final; up to the stop string once it is found, or including it."""
        assert self.found is None, "the text has ended"
        if not self._stops:
            return text
        seen = self._held + text
        match = self._first_match(seen)
        if match is not None:
            end, start, self.found = match
            self._held = ""
            return seen[: end if self._include else start]
        keep = begun(seen, self._stops)
        self._held = seen[len(seen) - keep :]
        return seen[: len(seen) - keep]

    def flush(self) -> str:
        """Returns the text held back for a stop string that was never completed."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, seen: str) -> tuple[int, int, str] | None:
        matches = ((seen.find(stop), stop) for stop in self._stops)
        return min(((start + len(stop), start, stop) for start, stop in matches if start >= 0), default=None)


def begun(text: str, marks: tuple[str, ...]) -> int:
    """Length of the longest end of the text with which a mark begins, without being whole."""
    longest = 0
    for mark in marks:
        for length in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:length]):
                longest = length
                break
    return longest
