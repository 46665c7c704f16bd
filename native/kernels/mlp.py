"""A layer's norm and MLP in one call (mlp.cpp); intermediate results never leave the cache."""

from torch import Tensor

from engine import layer as references
from engine.kernels.bindings import Kernels
from engine.layer import MlpWeights
from engine.norm import RmsNorm
from native.library import library
from native.numbers import LANES
from native.products import addresses_of


def mlp(residual: Tensor, norm: RmsNorm, weights: MlpWeights, kernels: Kernels) -> Tensor:
    """Adds the MLP of the normed `residual` [tokens, hidden], contiguous, to it, in place."""
    tokens, hidden = residual.shape
    inner = weights.inner
    gate_up, down = addresses_of(weights.gate_up, tokens), addresses_of(weights.down, tokens)
    if gate_up is None or down is None or hidden % LANES or inner % LANES:
        return references.mlp(residual, norm, weights, kernels)
    wide = residual.float()
    library().swiglu(
        wide.data_ptr(), norm.gain.data_ptr(), norm.floor.data_ptr(), *gate_up, *down, tokens, hidden, inner
    )
    return residual if wide is residual else residual.copy_(wide)
