"""The P-EAGLE head for training (arXiv 2602.01469): a deeper EAGLE-3 head, and the trained inputs of its mask slots.

A mask slot stands for a token and a tap that do not exist yet. It reads a trained embedding and a trained hidden state
instead, so that all drafts come from one pass. `train/heads/peagle/loss.py` drives the head;
`spec/drafters/peagle.py` serves it.
Parameter names are the keys of SpecForge's P-EAGLE checkpoints, except the mask's embedding, which is a row of
`embed_tokens` there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aerie.contracts.errors import ConfigError
from aerie.train.heads.blocks import Blocks, Memory
from aerie.train.heads.head import HeadShape, Layer, Mlp, Norm
from aerie.train.heads.unroll import rotate

_INIT_STD = 0.02


@dataclass(frozen=True, slots=True)
class ParallelShape:
    """`mask_token` is the id whose embedding row the mask takes; no text contains it."""

    head: HeadShape
    layers: int
    mask_token: int


class PlainAttention(nn.Module):
    """Projections of a layer that reads only the hidden state."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)


class PlainLayer(nn.Module):
    """A layer after the first: built like the target's, on the head's hidden state."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden, eps=shape.eps)
        self.self_attn = PlainAttention(shape)
        self.post_attention_layernorm = Norm(shape.hidden, eps=shape.eps)
        self.mlp = Mlp(shape)


class ParallelHead(nn.Module):
    """Takes elements: (tap of position j, token of position j + 1), or the mask in place of both."""

    def __init__(self, shape: ParallelShape) -> None:
        super().__init__()
        self.shape = shape
        one = shape.head
        self.fc = nn.Linear(len(one.boundaries) * one.hidden, one.hidden, bias=False)
        self.layers = nn.ModuleList([Layer(one), *(PlainLayer(one) for _ in range(shape.layers - 1))])
        self.norm = Norm(one.hidden, eps=one.eps)
        self.lm_head = nn.Linear(one.hidden, one.draft_vocabulary, bias=False)
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, len(one.boundaries) * one.hidden))
        self.mask_embedding = nn.Parameter(torch.empty(one.hidden))
        nn.init.normal_(self.mask_embedding, std=_INIT_STD)
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=_INIT_STD)

    def forward(self, embedded: Tensor, hidden: Tensor, rotations: tuple[Tensor, Tensor], blocks: Blocks) -> Tensor:
        """(F1)..(F6), layer by layer: embeddings and fused hidden states [rows, elements, hidden] -> pre-norm outputs.

        `rotations` are RoPE cosines and sines [rows, 1, elements, head_dim]; `blocks` say which of all rows' elements
        attend to which.
        """
        layers: list[Any] = list(self.layers)  # of two classes
        for index, layer in enumerate(layers):
            if index == 0:
                normed = layer.hidden_norm(hidden)
                read = torch.cat([layer.input_layernorm(embedded), normed], -1)  # [rows, elements, 2 * hidden]
                hidden = normed if self.shape.head.norm_before_residual else hidden
            else:
                read = layer.input_layernorm(hidden)
            hidden = hidden + _attend(self.shape.head, layer.self_attn, read, rotations, blocks)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return hidden

    def logits(self, output: Tensor) -> Tensor:
        """(F7): [..., hidden] -> [..., draft vocabulary]."""
        return self.lm_head(self.norm(output))


def _attend(shape: HeadShape, attention: Any, read: Tensor, rotations: tuple[Tensor, Tensor], blocks: Blocks) -> Tensor:
    """read [rows, elements, inputs of q] -> [rows, elements, hidden]."""
    q, k, v = (  # [rows, heads, elements, head_dim] each, k and v with kv_heads
        getattr(attention, f"{name}_proj")(read).unflatten(-1, (-1, shape.head_dim)).transpose(1, 2)
        for name in ("q", "k", "v")
    )
    # [rows * elements, heads, head_dim] each
    queries, keys, values = (x.transpose(1, 2).flatten(0, 1) for x in (rotate(q, *rotations), rotate(k, *rotations), v))
    mixed = Memory(blocks, keys, values, shape.group).attend(queries)
    out: Tensor = attention.o_proj(mixed.flatten(1).unflatten(0, read.shape[:2]))
    return out


@torch.no_grad()
def start_from(head: ParallelHead, weights: Mapping[str, Tensor], *, kept: bool = False) -> None:
    """Initializes the head from an EAGLE-3 head. Only mask slots and deeper layers are new, and these layers add zero
    at first.

    `weights` have SpecForge's names; `kept` freezes them. Raises ConfigError if one is missing or has another shape.
    """
    for name, parameter in head.named_parameters():
        theirs = name.replace("layers.0.", "midlayer.")
        if name.startswith("mask_") or theirs.startswith("layers."):
            continue
        parameter.requires_grad_(not kept)
        if theirs not in weights or weights[theirs].shape != parameter.shape:
            found = f"shape {tuple(weights[theirs].shape)}" if theirs in weights else "none"
            raise ConfigError(
                f"start_from: {theirs} should have shape {tuple(parameter.shape)}; the head has {found}. Name an "
                f"EAGLE-3 head of the same target, draft vocabulary and intermediate_size",
                param="start_from",
            )
        parameter.copy_(weights[theirs])
    deeper: list[Any] = list(head.layers)[1:]
    for layer in deeper:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
