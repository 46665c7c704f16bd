"""Rotary position embedding as one complex product. Weights are permuted at load so that rotated pairs lie side by
side.
"""

import math

import torch
from torch import Tensor

from aerie.engine.model.config import Rope


def rotations(rope: Rope, head_dim: int, positions: int, device: torch.device | str = "cpu") -> Tensor:
    """[positions, 1, head_dim / 2] complex64: e^(i p f) for each position p and frequency f."""
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies(rope, head_dim)
    return torch.polar(torch.ones_like(angles), angles)[:, None, :].to(device)


def frequencies(rope: Rope, head_dim: int) -> Tensor:
    """[head_dim / 2] fp32: the radians that each pair of components turns a position."""
    found = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.kind == "linear":
        return found / rope.factor
    return _llama3(found, rope) if rope.kind == "llama3" else found


def interleaved(weight: Tensor, head_dim: int) -> Tensor:
    """weight [out, ...]: reorders output rows from the checkpoint's halves (i, i + d/2) to adjacent pairs."""
    halves = weight.view(-1, 2, head_dim // 2, *weight.shape[1:])  # [heads, 2, head_dim / 2, ...]
    return halves.transpose(1, 2).reshape(weight.shape).contiguous()


def rotate_(x: Tensor, count: int, rotations: Tensor) -> None:
    """Rotates the first `count` heads of x [tokens, heads, head_dim], in interleaved order, in place.

    `rotations` [tokens, 1, head_dim / 2] complex. 16-bit values are rotated in fp32.
    """
    part = x[:, :count]  # [tokens, count, head_dim]
    pairs = torch.view_as_complex(part.float().unflatten(-1, (-1, 2)))  # [tokens, count, head_dim / 2]
    pairs.mul_(rotations)
    if x.dtype != torch.float32:
        part.copy_(torch.view_as_real(pairs).flatten(-2))


def _llama3(frequencies: Tensor, rope: Rope) -> Tensor:
    """Llama 3.1's scaling of frequencies [head_dim / 2]: long wavelengths are stretched, short ones kept, those between
    blended.
    """
    wavelength = 2 * math.pi / frequencies
    low, high = rope.original_positions / rope.low_freq_factor, rope.original_positions / rope.high_freq_factor
    blend = (rope.original_positions / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    mixed = (1 - blend) * frequencies / rope.factor + blend * frequencies
    stretched = torch.where(wavelength > low, frequencies / rope.factor, frequencies)
    return torch.where((wavelength <= low) & (wavelength >= high), mixed, stretched)
