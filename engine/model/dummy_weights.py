"""Random weights of a model's real shape, for measuring without a checkpoint. Implements engine.model.weights.Source.

Used where `model.weights` is `dummy`. The same name and shape always give the same numbers on one kind of device, so
that a lane can be built twice. Matrices preserve the scale of their inputs, and norms are 1: activations of any depth
stay finite, and logits are not flat.
"""

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from aerie.engine.model.matrix import Matrix
from aerie.engine.model.weights import unquantized


class DummyWeights:
    """Returns whatever is asked for. `shapes` lists the available tensors, for models that look before they ask."""

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self._dtype = dtype
        self._device = torch.device(device)
        self._shapes = {} if shapes is None else shapes

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        kind = dtype or self._dtype
        if not kind.is_floating_point:
            return torch.zeros(shape, dtype=kind, device=self._device)
        made = torch.empty(shape, dtype=kind, device=self._device)
        if len(shape) == 1:
            return made.fill_(1.0 if "norm" in name else 0.0)
        reach = (3 / shape[-1]) ** 0.5  # bound of a uniform distribution with variance 1 / inputs
        made.uniform_(-reach, reach, generator=self._numbers_of(name))
        return made.copy_(made.bfloat16()) if kind is torch.float32 else made  # packed as a checkpoint's bf16 numbers

    def matrix(self, module: str, shape: tuple[int, int]) -> Matrix:
        """Unquantized."""
        return unquantized(self, module, shape)

    def finish(self, *, ignored: tuple[str, ...] = ()) -> None:
        """Nothing can be left over."""

    def _numbers_of(self, name: str) -> torch.Generator:
        return torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
