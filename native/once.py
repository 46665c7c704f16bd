"""Caches what is made from an object at the first call."""

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Once(Generic[K, V]):
    """Keyed by identity, not by equality. The object is kept, too, so that no other object can take its identity."""

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make
        self._kept: dict[int, tuple[K, V]] = {}

    def __call__(self, of: K) -> V:
        found = self._kept.get(id(of))
        if found is None:
            found = self._kept[id(of)] = (of, self._make(of))
        return found[1]
