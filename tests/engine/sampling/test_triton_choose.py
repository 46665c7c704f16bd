"""The fused choice equals the torch one: greedy, noisy, and under every filter, at vocabularies that fill no block."""

import pytest
import torch

from aerie.engine.sampling.choose import Needs, choose, filtered
from aerie.engine.sampling.noise import gumbel
from aerie.engine.state.row_tables import RowTables
from tests.engine.triton_here import DEVICE, GPU, TRITON, needs_triton

pytestmark = needs_triton
VOCABULARY = 128_256 if GPU else 1100
NODES = 64 if GPU else 4


def tables(**settings: float) -> RowTables:
    """Row 0 is greedy, the others sample with these settings."""
    made = RowTables(4, 1, 16, DEVICE)
    made.noise_keys.copy_(torch.tensor([11, 2**62 + 5, 1 << 40, 77, 0]))
    made.sampling["temperature"].copy_(torch.tensor([0.0, 0.7, 1.0, 1.9, 0.0]))
    for name, value in settings.items():
        made.sampling[name][1:4] = value
    return made


def nodes() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, rows and positions."""
    torch.manual_seed(3)
    logits = 4 * torch.randn(NODES, VOCABULARY, device=DEVICE)
    return logits, torch.arange(NODES, device=DEVICE) % 4, torch.arange(NODES, device=DEVICE) * 1000 + 7


@pytest.fixture(params=[None, 256], ids=["one chunk", "five chunks"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row's thresholds are searched by several programs where its vocabulary is large."""
    if request.param is not None:
        for name in ("CHUNK", "_BLOCK"):
            monkeypatch.setattr(f"aerie.engine.kernels.floors.{name}", request.param)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"top_k": 1},
        {"top_k": 40},
        {"top_p": 0.9},
        {"min_p": 0.05},
        {"top_k": 20, "top_p": 0.5, "min_p": 0.01},
    ],
    ids=str,
)
def test_equals_the_torch_choice(settings: dict[str, float]) -> None:
    (logits, rows, positions), made = nodes(), tables(**settings)
    needs = Needs(noise=True, filters=bool(settings), bans=False)
    fused = TRITON[choose](logits, rows, positions, made, needs)
    assert torch.equal(fused, choose(logits, rows, positions, made, needs))


@pytest.mark.parametrize("spread", [0.1, 4.0, 60.0])
def test_noise_is_made_wherever_a_token_can_win(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of few tokens, of flat and of peaked logits; a bound that is too low would change choices."""
    monkeypatch.setattr("aerie.engine.kernels.choose._BLOCK", 64)
    torch.manual_seed(5)
    logits = spread * torch.randn(16, VOCABULARY, device=DEVICE)
    rows, positions = torch.arange(16, device=DEVICE) % 3 + 1, torch.arange(16, device=DEVICE) * 31
    needs = Needs(noise=True, filters=False, bans=False)
    expected = choose(logits, rows, positions, tables(), needs)
    assert torch.equal(TRITON[choose](logits, rows, positions, tables(), needs), expected)
    monkeypatch.setattr("aerie.engine.kernels.choose.MOST", 0.0)
    if spread < 60:
        assert not torch.equal(TRITON[choose](logits, rows, positions, tables(), needs), expected)


def test_no_noise_exceeds_its_bound() -> None:
    """The least hash makes the most noise."""
    from aerie.engine.kernels.noise import MOST

    least = torch.tensor(0.5 * 2.0**-32)
    assert float(-(-(-least).log1p()).log()) <= MOST


def test_without_noise_it_is_the_argmax_and_ties_go_to_the_first() -> None:
    logits, rows, positions = nodes()
    logits[0, 5] = logits[0, 900] = 100.0
    fused = TRITON[choose](logits, rows, positions, tables(), Needs(noise=False, filters=False, bans=False))
    assert fused[0] == 5
    assert torch.equal(fused[1:], logits[1:].argmax(-1))


def test_stop_ids_are_banned_first() -> None:
    (logits, rows, positions), made = nodes(), tables()
    logits[1, 17] = 100.0
    made.stop_ids[1, 0], made.min_lengths[1] = 17, 1 << 20
    needs = Needs(noise=True, filters=False, bans=True)
    fused = TRITON[choose](logits, rows, positions, made, needs)
    assert fused[1] != 17 and torch.equal(fused, choose(logits, rows, positions, made, needs))


@pytest.mark.usefixtures("chunks")
def test_thresholds_leave_the_support_that_sorting_leaves() -> None:
    """Of many small values, where a wrong threshold would show though the choice did not."""
    torch.manual_seed(5)
    scaled = torch.randn(3, 700, device=DEVICE)
    min_ps = torch.tensor([0.02, 0.0, 0.0], device=DEVICE)
    top_ks = torch.tensor([300, 0, 5], dtype=torch.int32, device=DEVICE)
    top_ps = torch.tensor([0.8, 0.3, 1.0], device=DEVICE)
    kept = TRITON[filtered](scaled, min_ps, top_ks, top_ps)
    assert torch.equal(kept, filtered(scaled, min_ps, top_ks, top_ps))


def test_noise_is_its_twin_s() -> None:
    """To the last places of the logarithms; hashes that differed would be far off."""
    keys = torch.tensor([0, 2**63 - 1, 1 << 33, 12345], device=DEVICE)
    positions = torch.tensor([0, 131_000, 1, 2**31 - 1], device=DEVICE)
    tokens = torch.randint(0, 2**31 - 1, (1500,), device=DEVICE)
    noise = TRITON[gumbel](keys, positions, tokens)
    torch.testing.assert_close(noise, gumbel(keys, positions, tokens), atol=2e-5, rtol=2e-5)
