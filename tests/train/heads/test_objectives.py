"""The losses on acceptance: their values by hand, and that descending them raises acceptance."""

import pytest
import torch

from aerie.train.heads.objectives import OBJECTIVES, lk_alpha, lk_lambda, soft_cross_entropy, total_variation

P = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)


def logits_of(q: list[float]) -> torch.Tensor:
    return torch.tensor([q], dtype=torch.float64).log()


def test_values_by_hand() -> None:
    drafted, mass = logits_of([0.25, 0.25, 0.5]), torch.tensor([0.8], dtype=torch.float64)
    accepted = 0.25 + 0.2 + 0.2  # min of q and 0.8 p
    assert total_variation(drafted, P, mass).item() == pytest.approx(1 - accepted)
    assert lk_alpha(drafted, P, mass).item() == pytest.approx(-torch.tensor(accepted).log().item(), rel=1e-5)
    share = torch.tensor(-3 * accepted).exp().item()
    crossed = soft_cross_entropy(drafted, P).item()
    assert lk_lambda(drafted, P, mass).item() == pytest.approx(share * crossed + (1 - share) * (1 - accepted), rel=1e-5)


def test_perfect_drafts_lose_nothing_but_what_cannot_be_drafted() -> None:
    whole, most = torch.ones(1, dtype=torch.float64), torch.full((1,), 0.9, dtype=torch.float64)
    assert total_variation(P.log(), P, whole).item() == pytest.approx(0)
    assert total_variation(P.log(), P, most).item() == pytest.approx(0.1)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_descending_raises_acceptance(name: str) -> None:
    torch.manual_seed(0)
    goals = torch.randn(16, 12, dtype=torch.float64).mul(2).softmax(-1)
    drafted = torch.randn(16, 12, dtype=torch.float64, requires_grad=True)
    mass = torch.ones(16, dtype=torch.float64)
    before = total_variation(drafted.detach(), goals, mass)
    optimizer = torch.optim.Adam([drafted], lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        OBJECTIVES[name](drafted, goals, mass).backward()
        optimizer.step()
    assert total_variation(drafted.detach(), goals, mass) < 0.2 * before
