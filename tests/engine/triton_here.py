"""Whether Triton kernels can run here: on a GPU, or in Triton's interpreter where TRITON_INTERPRET=1."""

import importlib.util
import os
from dataclasses import replace

import pytest
import torch

from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.state.kv_pool import KVPool
from aerie.spec.kernels.table import triton_kernels

GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED or not GPU else "cuda")
INSTALLED = importlib.util.find_spec("triton") is not None
TRITON = triton_kernels() if INSTALLED else {}
"""By reference."""

needs_triton = pytest.mark.skipif(
    not INSTALLED or not (GPU or INTERPRETED),
    reason="Triton is not installed, or there is no GPU and TRITON_INTERPRET is not 1: run make test-gpu-contracts",
)


def moved(inputs: AttentionInputs, pool: KVPool) -> tuple[AttentionInputs, KVPool]:
    """A golden case on the device: what the host knows of it stays there."""
    layers, slots, kv_heads, head_dim = pool.keys.shape
    there = KVPool(
        layers=layers,
        pages=slots // pool.page_size,
        page_size=pool.page_size,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=pool.keys.dtype,
        device=DEVICE,
    )
    there.keys.copy_(pool.keys)
    there.values.copy_(pool.values)
    on_device = replace(
        inputs,
        kv_indices=inputs.kv_indices.to(DEVICE),
        prefix_lens=inputs.prefix_lens.to(DEVICE),
        words=None if inputs.words is None else inputs.words.to(DEVICE),
    )
    return on_device, there
