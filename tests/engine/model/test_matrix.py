"""Matrices before their layout: rounding by outputs, and rows that are stacked and reordered in either kind."""

import pytest
import torch

from aerie.engine.model import matrix
from aerie.engine.model.matrix import Rounded, reordered, rounded, stacked


def weights(out: int, wide: int) -> torch.Tensor:
    torch.manual_seed(out)
    return torch.randn(out, wide) * torch.logspace(-3, 2, out)[:, None]


def test_the_largest_weight_of_an_output_is_127_times_its_scale() -> None:
    weight = weights(9, 40)
    weight[4] = 0
    found = rounded(weight.bfloat16())
    assert found.dtype is torch.bfloat16 and found.shape == weight.shape
    assert found.integers.abs().amax(1).tolist() == [127, 127, 127, 127, 0, 127, 127, 127, 127]
    assert ((found.weight.float() - weight).abs() <= 0.51 * found.scales[:, None] + weight.abs() * 2.0**-7).all()


def test_rounding_in_blocks_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = weights(23, 40)
    whole = rounded(weight)
    monkeypatch.setattr(matrix, "_BLOCK", 5 * 40)
    blocks = rounded(weight)
    assert torch.equal(whole.integers, blocks.integers) and torch.equal(whole.scales, blocks.scales)
    assert rounded(blocks) is blocks


def test_rows_of_either_kind_are_stacked_and_reordered_alike() -> None:
    parts = [weights(4, 8), weights(6, 8)]
    eight = [rounded(part) for part in parts]
    merged = stacked(eight)
    assert isinstance(merged, Rounded)
    assert torch.equal(merged.weight, torch.cat([part.weight for part in eight]))
    mixed = stacked([parts[0], eight[1]])
    assert isinstance(mixed, torch.Tensor) and torch.equal(mixed, torch.cat([parts[0], eight[1].weight]))
    rotated = reordered(merged, lambda rows: rows.flip(0))
    assert isinstance(rotated, Rounded) and torch.equal(rotated.weight, merged.weight.flip(0))
    assert torch.equal(reordered(mixed, lambda rows: rows.flip(0)), mixed.flip(0))
