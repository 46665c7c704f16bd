"""Random layers whose weights are bf16 numbers, as those that C++ kernels read are."""

from typing import Any

import torch

from aerie.engine.model.layer import AttentionWeights, MlpWeights
from aerie.engine.model.norm import RmsNorm
from aerie.engine.model.projection import Precision, Projection
from aerie.engine.model.stack import Layer
from tests.engine.attention.attention_cases import HEADS, KV_HEADS
from tests.native.cpp_here import CPP

HIDDEN, INNER = 48, 80


def projection(out: int, wide: int, dtype: torch.dtype, *, biased: bool, rounds: bool) -> Projection:
    bias = torch.randn(out).bfloat16().to(dtype) if biased else None
    weight = (torch.randn(out, wide) * wide**-0.5).bfloat16().to(dtype)
    return Projection(weight, bias, CPP, Precision.INT8 if rounds else Precision.STORED)


def layer(dim: int, dtype: torch.dtype, *, beside: bool = False, rich: bool = False) -> Layer:
    """`rich` is of biases, norms of heads, and 8-bit weights."""
    options: dict[str, Any] = {"biased": rich, "rounds": rich}
    width = HIDDEN * (2 if beside else 1)
    attention = AttentionWeights(
        qkv=projection((HEADS + 2 * KV_HEADS) * dim, width, dtype, **options),
        output=projection(HIDDEN, HEADS * dim, dtype, **options),
        q_norm=RmsNorm(torch.randn(dim), 1e-6, CPP) if rich else None,
        k_norm=RmsNorm(torch.randn(dim), 1e-6, CPP) if rich else None,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=dim,
    )
    return Layer(
        input_norm=RmsNorm(torch.randn(HIDDEN), 1e-5, CPP),
        attention=attention,
        post_norm=RmsNorm(torch.randn(HIDDEN), 1e-5, CPP),
        mlp=MlpWeights(
            projection(2 * INNER, HIDDEN, dtype, **options), projection(HIDDEN, INNER, dtype, **options), INNER
        ),
        embedding_norm=RmsNorm(torch.randn(HIDDEN), 1e-5, CPP) if beside else None,
    )
