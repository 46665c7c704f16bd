"""Attention in bf16 is torch's in fp32 up to rounding, forward and backward; no token sees a later one."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from aerie.train.demo import attention
from aerie.train.demo.attention import attend

SCALING = 0.25


@pytest.fixture
def states() -> list[Tensor]:
    """Query of four heads, key and value of two, which share them: [3 rows, heads, 21 tokens, 16]."""
    torch.manual_seed(0)
    return [torch.randn(3, heads, 21, 16, requires_grad=True) for heads in (4, 2, 2)]


@pytest.mark.parametrize("block", [5, 64])
def test_outputs_and_gradients_are_torchs(states: list[Tensor], block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_BLOCK", block)
    ours, _ = attend(None, *states, None, scaling=SCALING)
    torchs = scaled_dot_product_attention(*states, is_causal=True, scale=SCALING, enable_gqa=True).transpose(1, 2)
    assert ours.shape == torchs.shape and ours.dtype is torch.float32
    outer = torch.randn(ours.shape)
    for mine, exact in zip(_with_gradients(ours, outer, states), _with_gradients(torchs, outer, states), strict=True):
        assert 0 < (mine - exact).norm() / exact.norm() < 0.01


@pytest.mark.parametrize("block", [5, 64])
def test_no_token_sees_a_later_one(states: list[Tensor], block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_BLOCK", block)
    before, _ = attend(None, *states, None, scaling=SCALING)
    with torch.no_grad():
        for state in states:
            state[:, :, 12:] = 7.0
    after, _ = attend(None, *states, None, scaling=SCALING)
    assert torch.equal(before[:, :12], after[:, :12])
    assert not torch.equal(before[:, 12:], after[:, 12:])


def _with_gradients(out: Tensor, outer: Tensor, states: list[Tensor]) -> list[Tensor]:
    return [out, *torch.autograd.grad(out, states, outer)]
