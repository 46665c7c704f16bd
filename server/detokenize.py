"""Tokens to text as they come: nothing is shown that a later token could change, and stop strings are cut to the letter."""

from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


@dataclass(frozen=True, slots=True)
class Piece:
    """New text that is safe to show. `stopped` is the stop string that ended the text; `used` the tokens taken in."""

    text: str
    used: int
    stopped: str | None = None


class Detokenizer:
    """One answer's text. Joined pieces equal the decoded ids, up to the first stop string."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...] = (), *, include_stop: bool = False) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stops = stops
        self._include_stop = include_stop
        self._ids: list[int] = []
        self._decoded = 0
        """Characters that the stream has given."""
        self._held = ""

    def push(self, ids: list[int]) -> Piece:
        """Takes a run of tokens, up to the one that completes a stop string."""
        shown = []
        for used, token in enumerate(ids, 1):
            self._ids.append(token)
            piece = self._take(self._stream.step(self._tokenizer, token) or "")
            shown.append(piece.text)
            if piece.stopped is not None:
                return Piece("".join(shown), used, piece.stopped)
        return Piece("".join(shown), len(ids))

    def finish(self) -> Piece:
        """The text still held back, broken characters included; a stop string can still be found in it."""
        rest = str(self._tokenizer.decode(self._ids, skip_special_tokens=True))[self._decoded :]
        piece = self._take(rest)
        held, self._held = self._held, ""
        return Piece(piece.text + ("" if piece.stopped else held), 0, piece.stopped)

    def _take(self, text: str) -> Piece:
        self._decoded += len(text)
        self._held += text
        found = [(place, stop) for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if found:
            place, stop = min(found)
            shown = self._held[: place + len(stop) if self._include_stop else place]
            self._held = ""
            return Piece(shown, 0, stop)
        safe = len(self._held) - self._possible_start()
        shown, self._held = self._held[:safe], self._held[safe:]
        return Piece(shown, 0)

    def _possible_start(self) -> int:
        """Characters at the end of the held text that may begin a stop string."""
        most = min(len(self._held), max((len(stop) - 1 for stop in self._stops), default=0))
        for size in range(most, 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0
