"""The target's choice equals a loop in plain Python, row by row, whatever the batch mixes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from aerie.engine.sampling.choose import Needs, choose, filtered, token_logprobs
from aerie.engine.sampling.noise import gumbel
from aerie.engine.state.row_tables import RowTables

VOCABULARY = 24


def kept(logits: list[float], *, min_p: float, top_k: int, top_p: float) -> set[int]:
    """The support in vLLM's order: min-p, then top-k, then top-p over what is left."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    peak = logits[order[0]]
    left = [token for token in order if math.exp(logits[token] - peak) >= min_p]
    left = left[:top_k] if top_k else left
    total = sum(math.exp(logits[token] - peak) for token in left)
    support, mass = set(), 0.0
    for token in left:
        if mass >= top_p:
            break
        support.add(token)
        mass += math.exp(logits[token] - peak) / total
    return support


FILTERS = st.tuples(
    st.sampled_from([0.0, 0.01, 0.2, 0.9]), st.sampled_from([0, 1, 2, 5, 100]), st.sampled_from([0.05, 0.5, 0.9, 1.0])
)


@given(st.lists(FILTERS, min_size=1, max_size=4), st.integers(0, 2**31))
def test_the_support_equals_a_loop(filters: list[tuple[float, int, float]], seed: int) -> None:
    scaled = 2 * torch.randn(len(filters), VOCABULARY, generator=torch.Generator().manual_seed(seed))
    min_ps, top_ks, top_ps = (list(values) for values in zip(*filters, strict=True))
    result = filtered(scaled, torch.tensor(min_ps), torch.tensor(top_ks, dtype=torch.int32), torch.tensor(top_ps))
    for row, (min_p, top_k, top_p) in enumerate(filters):
        expected = kept(scaled[row].double().tolist(), min_p=min_p, top_k=top_k, top_p=top_p)
        assert set(torch.nonzero(result[row].isfinite()).flatten().tolist()) == expected
        assert torch.equal(result[row][list(expected)], scaled[row][list(expected)])


def mixed_tables() -> RowTables:
    """Greedy, sampled, filtered, and filtered in every way."""
    tables = RowTables(4, 2, 16)
    tables.noise_keys[:4] = torch.tensor([11, 12, 13, 14])
    tables.sampling["temperature"][:4] = torch.tensor([0.0, 0.7, 1.3, 1.0])
    tables.sampling["top_k"][:4] = torch.tensor([0, 0, 4, 6])
    tables.sampling["top_p"][:4] = torch.tensor([1.0, 1.0, 1.0, 0.8])
    tables.sampling["min_p"][:4] = torch.tensor([0.0, 0.0, 0.0, 0.05])
    return tables


@pytest.mark.parametrize("seed", range(8))
def test_a_mixed_batch_chooses_as_each_row_alone(seed: int) -> None:
    tables = mixed_tables()
    generator = torch.Generator().manual_seed(seed)
    rows, positions = torch.tensor([3, 0, 1, 2, 1]), torch.tensor([5, 6, 7, 8, 9])
    logits = 2 * torch.randn(5, VOCABULARY, generator=generator)
    together = choose(logits, rows, positions, tables, Needs(noise=True, filters=True, bans=False))
    for place, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
        needs = Needs(noise=row > 0, filters=row > 1, bans=False)
        one = slice(place, place + 1)
        assert choose(logits[one], rows[one], positions[one], tables, needs).tolist() == [int(together[place])]
        scaled = logits[place] if row == 0 else logits[place] / tables.sampling["temperature"][row]
        support = kept(
            scaled.tolist(),
            min_p=float(tables.sampling["min_p"][row]),
            top_k=int(tables.sampling["top_k"][row]),
            top_p=float(tables.sampling["top_p"][row]),
        )
        noise = gumbel(tables.noise_keys[row : row + 1], torch.tensor([position]), torch.arange(VOCABULARY))[0]
        score = {token: float(scaled[token]) + (float(noise[token]) if row else 0.0) for token in support}
        assert max(score, key=lambda token: score[token]) == int(together[place])


def test_noise_that_the_caller_brings_is_the_same() -> None:
    tables, rows, positions = mixed_tables(), torch.tensor([1, 2]), torch.tensor([3, 4])
    logits = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(0))
    needs = Needs(noise=True, filters=True, bans=False)
    noise = gumbel(tables.noise_keys[rows], positions, torch.arange(VOCABULARY))
    own = choose(logits, rows, positions, tables, needs)
    assert torch.equal(own, choose(logits, rows, positions, tables, needs, noise=noise))


def test_min_tokens_hold_stop_ids_back_until_they_are_reached() -> None:
    tables = RowTables(1, 2, 16)
    tables.stop_ids[0, :2] = torch.tensor([3, 9])
    tables.min_lengths[0] = 10
    logits = torch.zeros(2, VOCABULARY)
    logits[:, 3], logits[:, 9], logits[:, 5] = 3, 2, 1
    chosen = choose(logits, torch.tensor([0, 0]), torch.tensor([9, 10]), tables, Needs(False, False, True))
    assert chosen.tolist() == [5, 3]


def test_choices_follow_the_filtered_distribution() -> None:
    """And the planted bug, filters after the temperature left out, is seen."""
    draws, tables = 100_000, mixed_tables()
    logits = 2 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(4))
    rows, positions = torch.full((draws,), 3), torch.arange(draws)
    chosen = choose(logits.expand(draws, -1), rows, positions, tables, Needs(True, True, False))
    counts = chosen.bincount(minlength=VOCABULARY)
    support = sorted(kept(logits.tolist(), min_p=0.05, top_k=6, top_p=0.8))
    assert counts.sum() == counts[support].sum()
    shares = logits[support].double().softmax(-1)
    assert chisquare(counts[support], shares * draws).pvalue > 1e-4
    unfiltered = choose(logits.expand(draws, -1), rows, positions, tables, Needs(True, False, False))
    assert unfiltered.bincount(minlength=VOCABULARY)[support].sum() < draws


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(5))
    chosen = torch.tensor([1, 2, 3])
    own, ids, ranked = token_logprobs(logits, chosen, 4)
    expected = logits.double().log_softmax(-1)
    torch.testing.assert_close(own.double(), expected[torch.arange(3), chosen], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(ranked.double(), expected.topk(4).values, atol=1e-6, rtol=1e-6)
    assert torch.equal(ids, expected.topk(4).indices)
