"""Chooses what multiplies few tokens by a GPU's matrices: the library, or the Triton kernel where it is faster.

A trial of milliseconds, while a model is loaded, serves all matrices of a shape, for one token and for the widths of a
tile. In 16 bits the last bits of a result follow the tile, with either product; fp32 is always the library's.
"""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from aerie.engine.device import free_bytes
from aerie.engine.device_time import microseconds
from aerie.engine.kernels.products import MOST_TOKENS, Skinny, multiply

logger = logging.getLogger("aerie.kernels")

SPANS = ((1, 1), (2, 16), (17, 32), (33, MOST_TOKENS))
"""Numbers of tokens that one trial speaks for; it has the most of them."""
_FORGOTTEN = 256 << 20
"""Bytes of a matrix and its copies, several times a cache."""
_REPEATS = 5
_GAIN = 1.03
"""How much faster the kernel must be."""
_NEAR = 0.02
"""The largest difference of both results, of the largest number: 16-bit rounding and the order of sums, and no more."""

Shape = tuple[int, int, torch.dtype]
Way = Callable[[Tensor, Tensor], Tensor]
Timed = Callable[[Way, Tensor, Sequence[Tensor]], float]
"""A way, x [tokens, in], copies of a weight [out, in] -> microseconds of one product."""


class SkinnyTrials:
    """Chooses for each shape once. Replaces engine.model.projection.skinny."""

    def __init__(self, timed: Timed | None = None) -> None:
        self._timed = timed or _timed
        self._counts: dict[Shape, frozenset[int]] = {}

    def __call__(self, weight: Tensor) -> Skinny | None:
        if weight.dtype not in (torch.bfloat16, torch.float16) or not weight.is_contiguous():
            return None
        shape = weight.shape[0], weight.shape[1], weight.dtype
        if shape not in self._counts:
            self._counts[shape] = self._tried(weight)
            logger.info("products with [%d, %d]: %s", *weight.shape, _said(self._counts[shape]))
        return Skinny(weight, self._counts[shape]) if self._counts[shape] else None

    def __str__(self) -> str:
        """For users."""
        taken = [f"[{out}, {width}] {_said(counts)}" for (out, width, _), counts in self._counts.items() if counts]
        return f"library; {'; '.join(taken)}" if taken else "library"

    def _tried(self, weight: Tensor) -> frozenset[int]:
        counts: set[int] = set()
        copies = _copies(weight)
        for least, most in SPANS:
            x = torch.randn(most, weight.shape[1], device=weight.device).to(weight.dtype)
            try:
                if not _near(multiply(x, weight), by_library(x, weight)):
                    logger.warning("the Triton product with [%d, %d] is wrong here and not used", *weight.shape)
                    return frozenset()
                if _GAIN * self._timed(multiply, x, copies) <= self._timed(by_library, x, copies):
                    counts.update(range(least, most + 1))
            except Exception as error:  # noqa: BLE001  of any library: the other product serves
                logger.warning("the Triton product with [%d, %d] is not used: %s", *weight.shape, error)
                return frozenset()
        return frozenset(counts)


def by_library(x: Tensor, weight: Tensor) -> Tensor:
    return x.mm(weight.t())


def _copies(weight: Tensor) -> list[Tensor]:
    size = weight.numel() * weight.element_size()
    more = min(_FORGOTTEN, free_bytes(weight.device) // 4) // size
    return [weight, *(weight.clone() for _ in range(more))]


def _timed(way: Way, x: Tensor, copies: Sequence[Tensor]) -> float:
    return microseconds(lambda: [way(x, copy) for copy in copies], x.device, _REPEATS) / len(copies)


def _near(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours.float() - theirs.float()).abs().max() <= _NEAR * theirs.float().abs().max())


def _said(counts: frozenset[int]) -> str:
    spans = [str(most) if least == most else f"{least}-{most}" for least, most in SPANS if most in counts]
    return f"Triton at {', '.join(spans)} tokens" if spans else "library"
