"""Causal attention from products and a softmax, for training in bf16 on a CPU.

torch's fused attention gains nothing from a CPU's bf16 units: forward and backward of these products take a third of
its time at 200 tokens and three quarters at 512.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

NAME = "aerie-products"
"""What `attn_implementation` calls it."""


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: None, *, scaling: float, **_: object
) -> tuple[Tensor, None]:
    """Query [rows, heads, n, width], key and value [rows, KV heads, n, width] -> [rows, n, heads, width].

    Every row is attended from its first token on; padding follows its tokens, which therefore never see it.
    """
    rows, heads, length, width = query.shape
    shared = heads // key.shape[1]
    later = torch.full((length, length), -torch.inf, dtype=torch.bfloat16).triu(1).repeat(shared, 1)
    with torch.autocast("cpu", enabled=False):  # it would have the softmax in fp32, which takes longer
        scaled = (query * scaling).to(torch.bfloat16).reshape(-1, shared * length, width)
        keys, values = (states.to(torch.bfloat16).reshape(-1, length, width) for states in (key, value))
        weights = torch.baddbmm(later, scaled, keys.mT).softmax(-1)
        seen = torch.bmm(weights, values).to(value.dtype)
    return seen.view(rows, heads, length, width).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
