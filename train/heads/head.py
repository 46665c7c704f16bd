"""The EAGLE-3 head for training: one decoder layer with autograd and no KV cache.

`train/heads/unroll.py` drives it; `spec/` has its own forward for serving. Parameter names are the keys of SpecForge's
checkpoints, so exporting renames nothing. Equations (F0)..(F8) are those of EAGLE-3 (Li et al., 2025) with the residual
taken before its norm and pre-norm feedback; EAGLE-3.1's norms are switches, and so is speculators' residual.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from aerie.engine.model.config import Rope

_INIT_STD = 0.02


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Sizes of a head; `boundaries` are the target layers whose input residuals it taps, low to high."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    draft_vocabulary: int
    boundaries: tuple[int, ...]
    eps: float
    rope: Rope
    max_positions: int
    tap_norms: bool = False
    """EAGLE-3.1: each tap has its own norm before `fc`."""
    norm_output: bool = False
    """EAGLE-3.1: the next level reads the normed output."""
    norm_before_residual: bool = False
    """speculators: attention's output is added to the normed hidden state."""

    @property
    def group(self) -> int:
        """Query heads that share a key."""
        return self.heads // self.kv_heads


def default_boundaries(layers: int) -> tuple[int, int, int]:
    """EAGLE-3's taps. Raises ValueError if they would coincide."""
    if layers < 8:
        raise ValueError(f"a target of {layers} layers has no three distinct taps; EAGLE-3 needs at least 8 layers")
    return 2, layers // 2, layers - 3


class Norm(nn.RMSNorm):
    """RMSNorm in the dtype of its weight, whatever dtype autocast gave its input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


class Attention(nn.Module):
    """The projections of the head's attention, whose input is twice as wide as the head; `unroll` does the rest."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.q_proj = nn.Linear(2 * shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(2 * shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(2 * shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)


class Mlp(nn.Module):
    """SwiGLU: [..., hidden] -> the same shape."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """The one decoder layer: separate norms for the embedding and the hidden state, concatenated in this order."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden, eps=shape.eps)
        self.hidden_norm = Norm(shape.hidden, eps=shape.eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden, eps=shape.eps)
        self.mlp = Mlp(shape)


class Head(nn.Module):
    """Takes (tap of position j, token of position j + 1) and predicts the token of position j + 2."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(len(shape.boundaries) * shape.hidden, shape.hidden, bias=False)
        norms = len(shape.boundaries) if shape.tap_norms else 0
        self.fc_norm = nn.ModuleList(Norm(shape.hidden, eps=shape.eps) for _ in range(norms))
        self.midlayer = Layer(shape)
        self.norm = Norm(shape.hidden, eps=shape.eps)
        self.lm_head = nn.Linear(shape.hidden, shape.draft_vocabulary, bias=False)
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=_INIT_STD)

    def fuse(self, taps: Tensor) -> Tensor:
        """(F0): [..., taps * hidden] -> [..., hidden]."""
        if self.fc_norm:
            parts = taps.chunk(len(self.fc_norm), -1)
            taps = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(taps)

    def project(
        self, embeddings: Tensor, hidden: Tensor, asking: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(F1)..(F3) and the projections of embeddings and hidden states [rows, columns, hidden]: q [rows, heads,
        columns, head_dim], of the columns `asking` only; k and v with kv_heads; before RoPE.
        """
        layer, size = self.midlayer, self.shape.head_dim
        z = torch.cat([layer.input_layernorm(embeddings), layer.hidden_norm(hidden)], -1)  # [rows, columns, 2 * hidden]
        attention, asked = layer.self_attn, z if asking is None else z[:, asking]
        q, k, v = attention.q_proj(asked), attention.k_proj(z), attention.v_proj(z)
        return _split(q, size), _split(k, size), _split(v, size)

    def finish(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """(F4)..(F6): the residual and the attention output [rows, heads, columns, head_dim] -> the pre-norm output."""
        layer = self.midlayer
        if self.shape.norm_before_residual:
            hidden = layer.hidden_norm(hidden)
        b = hidden + layer.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))  # [rows, columns, hidden]
        return b + layer.mlp(layer.post_attention_layernorm(b))

    def feedback(self, output: Tensor) -> Tensor:
        """(F8): a pre-norm output -> the input of the next level."""
        return self.norm(output) if self.shape.norm_output else output

    def logits(self, output: Tensor) -> Tensor:
        """(F7): [..., hidden] -> [..., draft vocabulary]."""
        return self.lm_head(self.norm(output))


def _split(x: Tensor, size: int) -> Tensor:
    """x [rows, columns, heads * size] -> [rows, heads, columns, size]."""
    return x.unflatten(-1, (-1, size)).transpose(1, 2)
