"""What a target and the recurrent part of a draft head share: everything between tokens and their logits."""

from dataclasses import dataclass

from torch import Tensor

from aerie.engine.attention import Attention
from aerie.engine.bindings import Kernels
from aerie.engine.model.norm import RmsNorm
from aerie.engine.model.projection import Projection
from aerie.engine.model.stack import Stack
from aerie.engine.state.kv_pool import KVPool


@dataclass(slots=True)
class Body:
    stack: Stack
    norm: RmsNorm
    """Applied to the stack's output."""
    output: Projection
    embeddings: Tensor
    """[vocabulary, hidden]"""
    rotations: Tensor
    """[positions, 1, head_dim / 2]"""
    pool: KVPool
    attention: Attention
    kernels: Kernels
