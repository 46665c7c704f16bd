"""Causal attention from products and a softmax, for training in bf16 on a CPU.

torch's fused attention gains nothing from a CPU's bf16 units: forward and backward of these products take about half
of its time or less.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

NAME = "aerie-products"
"""What `attn_implementation` calls it."""
_BLOCK = 160
"""Tokens that are attended from together; the ones after them are left out."""


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: None, *, scaling: float, **_: object
) -> tuple[Tensor, None]:
    """Query [rows, heads, n, width], key and value [rows, KV heads, n, width] -> [rows, n, heads, width].

    Every row is attended from its first token on; padding follows its tokens, which therefore never see it.
    """
    rows, heads, length, width = query.shape
    groups, shared = rows * key.shape[1], heads // key.shape[1]
    seen: list[Tensor] = []
    with torch.autocast("cpu", enabled=False):  # it would have the softmax in fp32, which takes longer
        queries = (query * scaling).to(torch.bfloat16).reshape(groups, shared, length, width)
        keys, values = (states.to(torch.bfloat16).reshape(groups, length, width) for states in (key, value))
        for first in range(0, length, _BLOCK):
            last = min(first + _BLOCK, length)
            block = queries[:, :, first:last].reshape(groups, -1, width)
            later = torch.full((last - first, last), -torch.inf, dtype=torch.bfloat16).triu(first + 1).repeat(shared, 1)
            weights = torch.baddbmm(later, block, keys[:, :last].mT).softmax(-1)
            seen.append(torch.bmm(weights, values[:, :last]).view(groups, shared, -1, width))
        out = torch.cat(seen, dim=2).to(value.dtype)
    return out.view(rows, heads, length, width).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
