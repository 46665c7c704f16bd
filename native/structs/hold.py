"""What kernels of whole steps call to hold a row's choices to its grammar (src/plans.h).

C++ cannot pass an error of Python on, so it is kept and raised when the step is answered.
"""

import ctypes
from ctypes import c_int64, c_long, c_void_p
from typing import Any

from aerie.engine.grammars.guides import Guides
from aerie.native.library import library
from aerie.native.structs.board import NativeBoard

_CALL = ctypes.CFUNCTYPE(None, c_void_p, c_long, c_long, *[c_void_p] * 5)
_ROOT = [0]


class Hold:
    """Of one worker."""

    def __init__(self, guides: Guides | None, rows: int, vocabulary: int) -> None:
        self.board = NativeBoard(rows, vocabulary)
        if guides is not None:
            guides.look_ahead(self.board)
        self.needed = False
        """Whether a row of the step in progress chooses under a grammar."""
        self._guides = guides
        self._call = _CALL(self._held)
        self._address = ctypes.cast(self._call, c_void_p).value
        self._error: Exception | None = None

    @property
    def address(self) -> int | None:
        """For the step in progress; None if no row needs it."""
        return self._address if self.needed else None

    def check(self) -> None:
        """Raises what the last step could not."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _held(self, step: int, place: int, *given: Any) -> None:
        guides = self._guides
        assert guides is not None
        if not guides.chooses(place):
            return
        try:
            _walk(guides, step, place, *given)
        except Exception as error:  # noqa: BLE001  raised by `check`
            self._error = error


def _walk(
    guides: Guides,
    step: int,
    place: int,
    nodes: int,
    tokens: int | None,
    parents: int | None,
    chosen: int,
    logits: int,
    positions: int,
) -> None:
    def among(node: int, allowed: bytes) -> int:
        found: int = library().chosen_among(step, place, node, allowed, tokens, parents, logits, positions)
        return found

    values = c_int64 * nodes
    held = values.from_address(chosen)
    choices = held[:]
    own_tokens = _ROOT if tokens is None else values.from_address(tokens)[:]
    own_parents = _ROOT if parents is None else values.from_address(parents)[:]
    guides.walk(place, own_tokens, own_parents, choices, among)
    held[:] = [*choices]
