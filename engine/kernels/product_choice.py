"""Chooses what multiplies few tokens by a GPU's matrices: the library, or another way where that is faster.

A trial of milliseconds, while a model is loaded, serves all matrices of a shape, for one token and for the widths of a
tile. In 16 bits the last bits of a result follow the tile, in every way; fp32 is always the library's.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.engine.device import free_bytes
from aerie.engine.device_time import microseconds
from aerie.engine.kernels.product_ways import MOST_TOKENS, Way, by_torch

logger = logging.getLogger("aerie.kernels")

SPANS = ((1, 1), (2, 16), (17, 32), (33, MOST_TOKENS))
"""Numbers of tokens that one trial speaks for; it has the most of them."""
_COMPILED = "inductor"
"""The way that serves the very numbers of tokens that it was tried with: each other one would be compiled anew."""
_FORGOTTEN = 256 << 20
"""Bytes of a matrix and its copies, several times a cache."""
_REPEATS = 5
_GAIN = 1.03
"""How much faster than the library a way must be."""
_NEAR = 0.02
"""The largest difference of both results, of the largest number: 16-bit rounding and the order of sums, and no more."""

Shape = tuple[int, int, torch.dtype]
Timed = Callable[[Way, Tensor, Sequence[Tensor]], float]
"""A way, x [tokens, in], copies of a weight [out, in] -> microseconds of one product."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A matrix [out, in] with the way for each number of tokens. Implements engine.model.projection.Skinny."""

    weight: Tensor
    ways: Mapping[int, Way]

    @property
    def counts(self) -> Mapping[int, Way]:
        return self.ways

    def times(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return self.ways[x.shape[0]](x, self.weight, dtype=dtype)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        return self.ways[x.shape[0]](x, self.weight, residual=residual)


class SkinnyTrials:
    """Chooses among `ways` by name, for each shape once. Replaces engine.model.projection.skinny."""

    def __init__(self, ways: Mapping[str, Way], timed: Timed | None = None) -> None:
        self._ways = ways
        self._timed = timed or _timed
        self._taken: dict[Shape, dict[int, str]] = {}

    def __call__(self, weight: Tensor) -> Chosen | None:
        if weight.dtype not in (torch.bfloat16, torch.float16) or not weight.is_contiguous():
            return None
        shape = weight.shape[0], weight.shape[1], weight.dtype
        if shape not in self._taken:
            self._taken[shape] = self._tried(weight)
            logger.info("products with [%d, %d]: %s", *weight.shape, _said(self._taken[shape]))
        taken = self._taken[shape]
        return Chosen(weight, {count: self._ways[name] for count, name in taken.items()}) if taken else None

    def __str__(self) -> str:
        """For users."""
        taken = [f"[{out}, {width}] {_said(own)}" for (out, width, _), own in self._taken.items() if own]
        return f"library; {'; '.join(taken)}" if taken else "library"

    @torch.inference_mode()
    def _tried(self, weight: Tensor) -> dict[int, str]:
        """The name of the way by number of tokens; the library's are left out."""
        copies = _copies(weight)
        given = [torch.randn(most, weight.shape[1], device=weight.device).to(weight.dtype) for _, most in SPANS]
        ways = {name: way for name, way in self._ways.items() if _serves(name, way, weight, given)}
        taken: dict[int, str] = {}
        for (least, most), x in zip(SPANS, given, strict=True):
            limit = self._timed(by_torch, x, copies) / _GAIN
            times = {name: self._timed(way, x, copies) for name, way in ways.items()}
            for name in sorted(times, key=lambda name: -times[name]):  # the fastest last
                if times[name] <= limit:
                    taken |= dict.fromkeys([most] if name == _COMPILED else range(least, most + 1), name)
        return taken


def _serves(name: str, way: Way, weight: Tensor, given: Sequence[Tensor]) -> bool:
    """Whether its products are the library's, rounded, unrounded and added."""
    outputs, width = weight.shape
    try:
        for x in given:
            expected = by_torch(x, weight)
            residual = torch.zeros_like(expected)
            wide = way(x, weight, dtype=torch.float32)
            found = way(x, weight), wide, way(x, weight, residual=residual), residual
            if wide.dtype is not torch.float32 or not all(_near(each, expected) for each in found):
                logger.warning("the product of %s with [%d, %d] is wrong here and not used", name, outputs, width)
                return False
    except Exception as error:  # noqa: BLE001  of any library: the other products serve
        logger.warning("the product of %s with [%d, %d] is not used: %s", name, outputs, width, error)
        return False
    return True


def _copies(weight: Tensor) -> list[Tensor]:
    size = weight.numel() * weight.element_size()
    more = min(_FORGOTTEN, free_bytes(weight.device) // 4) // size
    return [weight, *(weight.clone() for _ in range(more))]


def _timed(way: Way, x: Tensor, copies: Sequence[Tensor]) -> float:
    """Infinite where the way cannot be recorded, as steps are."""
    try:
        return microseconds(lambda: [way(x, copy) for copy in copies], x.device, _REPEATS) / len(copies)
    except Exception as error:  # noqa: BLE001  as above
        logger.warning("a product of %d tokens cannot be recorded: %s", x.shape[0], error)
        return float("inf")


def _near(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours.float() - theirs.float()).abs().max() <= _NEAR * theirs.float().abs().max())


def _said(taken: Mapping[int, str]) -> str:
    if not taken:
        return "library"
    runs = (f"{name} at {least if least == most else f'{least}-{most}'}" for name, least, most in _runs(taken))
    return f"{', '.join(runs)} tokens"


def _runs(taken: Mapping[int, str]) -> Iterator[tuple[str, int, int]]:
    """Name, least and most of each run of numbers that one way serves."""
    least = None
    for count in sorted(taken):
        least = count if least is None else least
        if taken.get(count + 1) != taken[count]:
            yield taken[count], least, count
            least = None
