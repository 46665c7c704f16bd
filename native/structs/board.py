"""The masks of rows' roots as kernels of whole steps read them (src/plans.h), put there while a pass runs."""

import ctypes
from ctypes import c_int32, c_long, c_void_p

from aerie.engine.sampling.masks import mask_words
from aerie.native.library import library

_ALL, _AWAITED = range(2)


class BoardStructure(ctypes.Structure):
    _fields_ = (("among", c_void_p), ("masks", c_void_p), ("words", c_long))


class NativeBoard:
    """Implements engine.grammars.ahead.Board."""

    def __init__(self, rows: int, vocabulary: int) -> None:
        self._words = mask_words(vocabulary)
        self._among = (c_int32 * rows)()
        self._masks = (c_int32 * (rows * self._words))()
        self._struct = BoardStructure(ctypes.addressof(self._among), ctypes.addressof(self._masks), self._words)
        self.address = ctypes.addressof(self._struct)
        self._put = library().mask_put
        self._given = ctypes.byref(self._among), ctypes.byref(self._masks)

    def put(self, row: int, words: bytes) -> None:
        self._put(*self._given, words, row, self._words)

    def await_mask(self, row: int) -> None:
        self._among[row] = _AWAITED

    def free(self, row: int) -> None:
        self._among[row] = _ALL
