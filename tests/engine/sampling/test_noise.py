"""The noise: finite, stateless, and exactly Gumbel as far as a chi-square can tell."""

import pytest
import torch
from scipy.stats import chisquare

from aerie.engine.bindings import Kernels
from aerie.engine.sampling import noise
from aerie.engine.sampling.noise import gumbel

LEVEL = 1e-4


def choices(kernels: Kernels, logits: torch.Tensor, draws: int, *, chunk: int = 4096) -> torch.Tensor:
    """Counts of argmax(logits + g) over `draws` positions."""
    tokens = torch.arange(logits.numel())
    counts = torch.zeros(logits.numel(), dtype=torch.long)
    for start in range(0, draws, chunk):
        positions = torch.arange(start, min(start + chunk, draws))
        keys = torch.full_like(positions, 0x1234_5678_9ABC)
        counts += (logits + kernels[gumbel](keys, positions, tokens)).argmax(-1).bincount(minlength=logits.numel())
    return counts


def test_choices_follow_the_softmax_at_16_tokens(kernels: Kernels) -> None:
    torch.manual_seed(0)
    logits = 2 * torch.randn(16)
    draws = 400_000
    counts = choices(kernels, logits, draws, chunk=65536)
    assert chisquare(counts, logits.double().softmax(-1) * draws).pvalue > LEVEL


def test_choices_follow_the_softmax_at_128k_tokens(kernels: Kernels) -> None:
    """64 bins of tokens of equal mass; the draws of a large vocabulary are few, so this sees gross errors only."""
    torch.manual_seed(0)
    vocabulary, draws = 128_256, 640
    counts = choices(kernels, torch.zeros(vocabulary), draws, chunk=64)
    bins = counts.view(64, -1).sum(1)
    assert chisquare(bins, torch.full((64,), draws / 64)).pvalue > LEVEL


def test_no_noise_is_infinite_even_at_the_largest_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_finalize", lambda x: torch.full_like(x, 0xFFFFFFFF))
    worst = gumbel(torch.tensor([1]), torch.tensor([1]), torch.arange(4))
    assert worst.isfinite().all()
    monkeypatch.setattr(noise, "_BELOW_ONE", 1.0)
    assert gumbel(torch.tensor([1]), torch.tensor([1]), torch.arange(4)).isinf().all(), "the planted bug must show"


def test_noise_depends_on_key_position_and_token_alone(kernels: Kernels) -> None:
    keys, positions = torch.tensor([5, 6, 5]), torch.tensor([10, 10, 11])
    whole = kernels[gumbel](keys, positions, torch.arange(1000))
    assert torch.equal(whole[1:2, 100:200], kernels[gumbel](keys[1:2], positions[1:2], torch.arange(100, 200)))
    assert (whole[0] == whole[1]).float().mean() < 0.01
    assert (whole[0] == whole[2]).float().mean() < 0.01


def test_neighboring_positions_and_tokens_are_uncorrelated(kernels: Kernels) -> None:
    positions = torch.arange(512)
    table = kernels[gumbel](torch.full_like(positions, 77), positions, torch.arange(512)).double()
    table = (table - table.mean()) / table.std()
    for shifted in (table.roll(1, 0), table.roll(1, 1), table.T):
        off = (table * shifted).mean()
        assert abs(off) < 5 / 512
