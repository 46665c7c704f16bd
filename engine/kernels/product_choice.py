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
from aerie.engine.kernels.product_ways import MOST_TOKENS, Way
from aerie.engine.kernels.uses import Norm, Use

logger = logging.getLogger("aerie.kernels")

SPANS = ((1, 1), (2, 2), (3, 4), (5, 16), (17, 32), (33, MOST_TOKENS))
"""Numbers of tokens that one trial speaks for; it has the most of them."""
_COMPILED = "inductor"
"""The way that serves the very numbers of tokens that it was tried with: each other one would be compiled anew."""
_FORGOTTEN = 256 << 20
"""Bytes of a matrix and its copies, several times a cache."""
_MOST_COPIES = 32
"""So many fit in a cache only if the whole model does; thousands would take minutes to record."""
_REPEATS = 5
_GAIN = 1.03
"""How much faster than the library a way must be."""
_NEAR = 0.02
"""The largest difference of both results, of the largest number: 16-bit rounding and the order of sums, and no more."""
_NORMED = (Use.NORMED, Use.GATED, Use.LOGITS)

Shape = tuple[int, int, torch.dtype, Use]


@dataclass(frozen=True, slots=True)
class Case:
    """x [tokens, in] for a matrix of this use."""

    use: Use
    x: Tensor
    norm: Norm

    def __call__(self, way: Way, weight: Tensor, residual: Tensor | None = None) -> Tensor:
        """`residual` is added to where the use is ADDED."""
        dtype = torch.float32 if self.use is Use.LOGITS else None
        norm, gate = self.norm if self.use in _NORMED else None, self.use is Use.GATED
        return way(self.x, weight, norm=norm, gate=gate, residual=residual, dtype=dtype)

    def residual(self, weight: Tensor) -> Tensor | None:
        return self.x.new_zeros(self.x.shape[0], weight.shape[0]) if self.use is Use.ADDED else None


Timed = Callable[[Way, Case, Sequence[Tensor]], float]
"""Of copies of a weight [out, in]: the microseconds of one product."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A matrix [out, in] with the way for each number of tokens. Implements engine.model.projection.Skinny."""

    weight: Tensor
    use: Use
    ways: Mapping[int, Way]

    @property
    def counts(self) -> Mapping[int, Way]:
        return self.ways

    def __call__(self, x: Tensor, *, norm: Norm | None = None, residual: Tensor | None = None) -> Tensor:
        dtype = torch.float32 if self.use is Use.LOGITS else None
        way = self.ways[x.shape[0]]
        return way(x, self.weight, norm=norm, gate=self.use is Use.GATED, residual=residual, dtype=dtype)


class SkinnyTrials:
    """Chooses among `ways` by name, for each shape and use once. Replaces engine.model.projection.skinny."""

    def __init__(
        self, ways: Mapping[str, Way], library: Way, norm: Callable[[Tensor], Norm], timed: Timed | None = None
    ) -> None:
        """`library` has no name; `norm` makes the layer's own of weights [width]."""
        self._ways = ways
        self._library = library
        self._norm = norm
        self._timed = timed or _timed
        self._taken: dict[Shape, dict[int, str]] = {}

    def __call__(self, weight: Tensor, use: Use) -> Chosen | None:
        if weight.dtype not in (torch.bfloat16, torch.float16) or not weight.is_contiguous():
            return None
        shape = weight.shape[0], weight.shape[1], weight.dtype, use
        if shape not in self._taken:
            self._taken[shape] = self._tried(weight, use)
            logger.info("%s products with [%d, %d]: %s", use.value, *weight.shape, _said(self._taken[shape]))
        taken = self._taken[shape]
        return Chosen(weight, use, {count: self._ways[name] for count, name in taken.items()}) if taken else None

    def __str__(self) -> str:
        """For users."""
        taken = [
            f"[{out}, {width}] {use.value} {_said(own)}" for (out, width, _, use), own in self._taken.items() if own
        ]
        return f"library; {'; '.join(taken)}" if taken else "library"

    @torch.inference_mode()
    def _tried(self, weight: Tensor, use: Use) -> dict[int, str]:
        """The name of the way by number of tokens; the library's are left out."""
        copies, width = _copies(weight), weight.shape[1]
        norm = self._norm(torch.ones(width, device=weight.device))
        drawn = [torch.randn(most, width, device=weight.device).to(weight.dtype) for _, most in SPANS]
        cases = [Case(use, x, norm) for x in drawn]
        ways = {name: way for name, way in self._ways.items() if self._serves(name, way, weight, cases)}
        taken: dict[int, str] = {}
        for (least, most), case in zip(SPANS, cases, strict=True):
            limit = self._timed(self._library, case, copies) / _GAIN
            times = {name: self._timed(way, case, copies) for name, way in ways.items()}
            for name in sorted(times, key=lambda name: -times[name]):  # the fastest last
                if times[name] <= limit:
                    taken |= dict.fromkeys([most] if name == _COMPILED else range(least, most + 1), name)
        return taken

    def _serves(self, name: str, way: Way, weight: Tensor, cases: Sequence[Case]) -> bool:
        """Whether its results are the library's."""
        try:
            for case in cases:
                expected = case(self._library, weight, case.residual(weight))
                residual = case.residual(weight)
                found = case(way, weight, residual)
                wrong = residual is not None and found is not residual
                if wrong or found.dtype is not expected.dtype or not _near(found, expected):
                    logger.warning("the product of %s with [%d, %d] is wrong here and not used", name, *weight.shape)
                    return False
        except Exception as error:  # noqa: BLE001  of any library: the other products serve
            logger.warning("the product of %s with [%d, %d] is not used: %s", name, *weight.shape, error)
            return False
        return True


def _copies(weight: Tensor) -> list[Tensor]:
    size = weight.numel() * weight.element_size()
    more = min(_MOST_COPIES, min(_FORGOTTEN, free_bytes(weight.device) // 4) // size)
    return [weight, *(weight.clone() for _ in range(more))]


def _timed(way: Way, case: Case, copies: Sequence[Tensor]) -> float:
    """Infinite where the way cannot be recorded, as steps are."""
    residual = case.residual(copies[0])
    try:
        several = microseconds(lambda: [case(way, copy, residual) for copy in copies], case.x.device, _REPEATS)
    except Exception as error:  # noqa: BLE001  as above
        logger.warning("a product of %d tokens cannot be recorded: %s", case.x.shape[0], error)
        return float("inf")
    return several / len(copies)


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
