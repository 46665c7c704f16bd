"""The fused choice equals the torch one: greedy, noisy, and under every filter, at vocabularies that fill no block."""

import pytest
import torch

from engine.choose import Needs, choose, filtered
from engine.noise import gumbel
from engine.row_tables import RowTables
from tests.engine.triton_here import DEVICE, GPU, needs_triton

pytestmark = needs_triton
VOCABULARY = 128_256 if GPU else 1100
NODES = 64 if GPU else 4


def tables(**settings: float) -> RowTables:
    """Row 0 is greedy, the others sample with these settings."""
    made = RowTables(4, 1, 16, DEVICE)
    made.noise_keys.copy_(torch.tensor([11, 2**62 + 5, 1 << 40, 77, 0]))
    made.temperatures.copy_(torch.tensor([0.0, 0.7, 1.0, 1.9, 0.0]))
    for name, value in settings.items():
        getattr(made, name)[1:4] = value
    return made


def nodes() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, rows and positions."""
    torch.manual_seed(3)
    logits = 4 * torch.randn(NODES, VOCABULARY, device=DEVICE)
    return logits, torch.arange(NODES, device=DEVICE) % 4, torch.arange(NODES, device=DEVICE) * 1000 + 7


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"top_ks": 1},
        {"top_ks": 40},
        {"top_ps": 0.9},
        {"min_ps": 0.05},
        {"top_ks": 20, "top_ps": 0.5, "min_ps": 0.01},
    ],
    ids=str,
)
def test_equals_the_torch_choice(settings: dict[str, float]) -> None:
    from engine.kernels.choose import choose_fused

    (logits, rows, positions), made = nodes(), tables(**settings)
    needs = Needs(noise=True, filters=bool(settings), bans=False)
    fused = choose_fused(logits, rows, positions, made, noise=True, filters=bool(settings))
    assert torch.equal(fused, choose(logits, rows, positions, made, needs))


def test_without_noise_it_is_the_argmax_and_ties_go_to_the_first() -> None:
    from engine.kernels.choose import choose_fused

    logits, rows, positions = nodes()
    logits[0, 5] = logits[0, 900] = 100.0
    fused = choose_fused(logits, rows, positions, tables(), noise=False, filters=False)
    assert fused[0] == 5
    assert torch.equal(fused[1:], logits[1:].argmax(-1))


def test_floors_leave_the_support_that_sorting_leaves() -> None:
    """Of many small values, where a wrong threshold would show though the choice did not."""
    from engine.kernels.choose import find_floors

    torch.manual_seed(5)
    logits, made = torch.randn(2, 700, device=DEVICE), tables(top_ks=300, top_ps=0.8, min_ps=0.02)
    floors = torch.empty(2, dtype=torch.int32, device=DEVICE)
    rows = torch.tensor([2, 3], device=DEVICE)
    find_floors[(2,)](
        floors, logits, rows, made.temperatures, made.min_ps, made.top_ks, made.top_ps, 700,
        greedy_below=1e-5, block=256,
    )  # fmt: skip
    scaled = logits / made.temperatures[rows][:, None]
    bits = scaled.view(torch.int32)
    kept = (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >= floors[:, None]
    support = filtered(scaled, made.min_ps[rows], made.top_ks[rows], made.top_ps[rows]) > float("-inf")
    assert torch.equal(kept, support)


def test_noise_is_its_twin_s() -> None:
    """To the last places of the logarithms; hashes that differed would be far off."""
    from engine.kernels.choose import find_best

    keys = torch.tensor([0, 2**63 - 1, 1 << 33, 12345], device=DEVICE)
    positions = torch.tensor([0, 131_000, 1, 2**31 - 1], device=DEVICE)
    values, tokens = torch.empty(4, device=DEVICE), torch.empty(4, dtype=torch.int32, device=DEVICE)
    lowest = torch.full((4,), -(2**31), dtype=torch.int32, device=DEVICE)
    rows, one = torch.arange(4, device=DEVICE), torch.ones(4, device=DEVICE)
    find_best[(4, 1)](
        values, tokens, torch.zeros(4, 1, device=DEVICE), rows, positions, keys, one, lowest, 1, 1,
        noise=True, greedy_below=1e-5, chunk=16, block=16,
    )  # fmt: skip
    torch.testing.assert_close(values, gumbel(keys, positions, tokens[:1])[:, 0], atol=2e-5, rtol=2e-5)
