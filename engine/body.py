"""What a target and the recurrent part of a draft head share: everything between tokens and their logits."""

from dataclasses import dataclass

from torch import Tensor

from engine.attention import Attention
from engine.kernels.bindings import Kernels
from engine.kv_pool import KVPool
from engine.norm import RmsNorm
from engine.projection import Projection
from engine.stack import Stack


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
