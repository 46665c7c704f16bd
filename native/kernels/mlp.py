"""A layer's norm and MLP in one call (mlp.cpp); intermediate results never leave the cache."""

from ctypes import byref

from torch import Tensor

from aerie.engine.bindings import Kernels
from aerie.engine.model import layer as references
from aerie.engine.model.layer import MlpWeights
from aerie.engine.model.norm import RmsNorm
from aerie.native.library import library
from aerie.native.numbers import LANES
from aerie.native.products import matrix_of


def mlp(residual: Tensor, norm: RmsNorm, weights: MlpWeights, kernels: Kernels) -> Tensor:
    """Adds the MLP of the normed `residual` [tokens, hidden], contiguous, to it, in place."""
    tokens, hidden = residual.shape
    gate_up, down = matrix_of(weights.gate_up, tokens), matrix_of(weights.down, tokens)
    if gate_up is None or down is None or hidden % LANES or weights.inner % LANES:
        return references.mlp(residual, norm, weights, kernels)
    wide = residual.float()
    library().swiglu(wide.data_ptr(), norm.gain.data_ptr(), norm.floor.data_ptr(), byref(gate_up), byref(down), tokens)
    return residual if wide is residual else residual.copy_(wide)
