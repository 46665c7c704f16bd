"""Weights packed as fp16 for a CPU's fp32 arithmetic, where they are 16-bit numbers anyway. Called while a model loads.

The packed form belongs to `torch.fbgemm_linear_fp16_weight_fp32_activation`, which engine/projection.py calls.
"""

import warnings

import torch
from torch import Tensor

_HALF_STEP = 2.0**-25
"""Half the distance of the smallest fp16 numbers: the most that packing may move a weight by."""


def pack(weight: Tensor) -> Tensor | None:
    """None where packing does not pay, would change the weights, or this torch cannot do it."""
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        return None
    if not hasattr(torch, "fbgemm_linear_fp16_weight_fp32_activation") or not _fits(weight):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both functions say once that a later torch may not have them
        try:
            packed = torch.fbgemm_pack_gemm_matrix_fp16(weight.contiguous())
            torch.fbgemm_linear_fp16_weight_fp32_activation(weight[:1], packed, None)
        except RuntimeError:  # a CPU that fbgemm does not know
            return None
    return packed


def _fits(weight: Tensor) -> bool:
    return bool(((weight.half().float() - weight).abs() <= _HALF_STEP).all())
