"""A layer's norm and MLP in one call (mlp.cpp); what lies between its products never leaves the cache."""

from torch import Tensor

from engine import layer as twins
from engine.cpp.library import library
from engine.cpp.numbers import LANES
from engine.layer import MlpWeights
from engine.norm import RmsNorm


def mlp(residual: Tensor, norm: RmsNorm, weights: MlpWeights) -> Tensor:
    """Adds the MLP of the normed `residual` [tokens, hidden], contiguous, to it, in place."""
    tokens, hidden = residual.shape
    inner = weights.inner
    gate_up, down = weights.gate_up.addresses(tokens), weights.down.addresses(tokens)
    if gate_up is None or down is None or hidden % LANES or inner % LANES:
        return twins.mlp.twin(residual, norm, weights)
    wide = residual.float()
    library().swiglu(
        wide.data_ptr(), norm.gain.data_ptr(), norm.floor.data_ptr(), *gate_up, *down, tokens, hidden, inner
    )
    return residual if wide is residual else residual.copy_(wide)
