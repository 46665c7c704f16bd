"""Losslessness as statistics: committed tokens against the target's exact law, with planted bugs that the same test
must catch.

One alpha of 1e-4 a test and fixed seeds; sample counts by the power table for a total variation of 0.01 to 0.02.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from aerie.engine.sampling import choose
from aerie.engine.sampling.noise import gumbel
from aerie.spec.trees import ranking
from tests.spec.toys import Crowd, TableHead, toy_worker

ALPHA = 1e-4
SMALL = 16
ROWS = 4096
SHAPES = {"chain": {"depth": 3, "nodes": 4}, "tree": {"depth": 3, "topk": 3, "nodes": 9}}


def table(states: int, vocabulary: int, seed: int, sharpness: float = 1.5) -> Tensor:
    return torch.randn(states, vocabulary, generator=torch.Generator().manual_seed(seed)) * sharpness


def noised(logits: Tensor, amount: float = 1.0, seed: int = 5) -> Tensor:
    """A head that has learned its target roughly."""
    return logits + amount * torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed))


def p_value(counts: np.ndarray, law: np.ndarray) -> float:
    """Chi-square of counts against a law; bins expected under 5 are merged."""
    expected = law * counts.sum()
    rare = expected < 5
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 1e-3:
        if counts[-1]:
            return 0.0  # what cannot happen did
        counts, expected = counts[:-1], expected[:-1]
    return float(stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue)


def joint_law(logits: Tensor, prompt: int) -> np.ndarray:
    """[V, V]: exact law of the first two tokens after the prompt."""
    p = logits.double().softmax(-1)
    first = p[prompt % len(p)]
    return (first[:, None] * p[torch.arange(len(first)) % len(p)]).numpy()


@pytest.mark.parametrize("shape", SHAPES)
def test_two_tokens_follow_the_targets_law(shape: str) -> None:
    logits = table(SMALL, SMALL, seed=1)
    counts = np.zeros((SMALL, SMALL))
    accepted = 0
    for batch in range(24):
        worker = toy_worker(logits, TableHead(noised(logits)), ROWS)
        crowd = Crowd(worker, ROWS, temperature=1.0, first_seed=batch * ROWS)
        texts = np.array(crowd.start())[:, 0]
        output = crowd.decode(**SHAPES[shape])
        accepted += int(output.accepted.sum())
        np.add.at(counts, (texts, output.token_ids[:, 0]), 1)
    assert accepted > 0.3 * ROWS * 24  # the second token is a drafted one often enough to matter
    assert p_value(counts.ravel(), joint_law(logits, 1).ravel()) > ALPHA


def test_accepted_and_bonus_tokens_deep_in_a_path_follow_the_law() -> None:
    """Given the token before, whatever its place in the round: transitions of all committed tokens."""
    logits = table(SMALL, SMALL, seed=2)
    counts = np.zeros((SMALL, SMALL))
    for batch in range(8):
        worker = toy_worker(logits, TableHead(noised(logits, 0.5)), ROWS)
        texts = Crowd(worker, ROWS, temperature=1.0, first_seed=batch * ROWS).tokens(6, **SHAPES["tree"])
        np.add.at(counts, (texts[:, :-1], texts[:, 1:]), 1)
    law = logits.double().softmax(-1).numpy()
    for state in range(SMALL):
        assert p_value(counts[state], law[state]) > ALPHA / SMALL


BIG = 128_000
LIKELY = 12


def big_table() -> Tensor:
    """Twelve likely tokens; all others together are below 1e-9, so one of them drawn is proof of a bug."""
    logits = torch.full((1, BIG), -40.0)
    logits[0, torch.arange(LIKELY) * 9973] = table(1, LIKELY, seed=3, sharpness=1.0)[0]
    return logits


def big_p_value() -> float:
    logits = big_table()
    rows, counts = 32, np.zeros(LIKELY + 1)
    bins = torch.full((BIG,), LIKELY)
    bins[torch.arange(LIKELY) * 9973] = torch.arange(LIKELY)
    for batch in range(6):
        worker = toy_worker(logits, TableHead(logits), rows, draft_temperature=1.0)  # every draft is accepted
        tokens = Crowd(worker, rows, temperature=1.0, first_seed=1000 * batch).tokens(5, depth=3, nodes=4)
        np.add.at(counts, bins[torch.from_numpy(tokens).long()].numpy(), 1)
    law = torch.zeros(LIKELY + 1, dtype=torch.float64).index_add_(0, bins, logits[0].double().softmax(-1)).numpy()
    return p_value(counts, law)


def test_a_vocabulary_of_128k_follows_the_law() -> None:
    assert big_p_value() > ALPHA


def rounding_gumbel(keys: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """The planted bug: -log(-log(u)) of a u that fp32 rounds to 1 where the hash is within 2^7 of its end."""
    fine = gumbel(keys, positions, tokens).double()
    uniform = (-(-fine).exp()).exp().float()
    return -(-uniform.log()).log()


def test_power_noise_that_rounds_to_one_is_caught_at_128k(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (choose, ranking):
        monkeypatch.setattr(module, "gumbel", rounding_gumbel)
    assert big_p_value() < ALPHA


def shared_noise_ratio_test(p: Tensor, q: Tensor, count: int) -> np.ndarray:
    """The planted bug: the draft is sampled with the target's noise, tested by p/q, and the residual drawn with it
    again.
    """
    keys = torch.arange(count) * 7919
    noise = gumbel(keys, torch.ones(count, dtype=torch.int64), torch.arange(SMALL))
    coins = torch.rand(count, generator=torch.Generator().manual_seed(0))
    drafted = (q.log() + noise).argmax(-1)
    keep = coins < p[drafted] / q[drafted]
    residual = ((p - q).clamp(min=0).log() + noise).argmax(-1)
    return np.bincount(torch.where(keep, drafted, residual).numpy(), minlength=SMALL)


def coupled(p: Tensor, q: Tensor, count: int) -> np.ndarray:
    """The rule in use: whatever was drafted, the choice is the target's."""
    keys = torch.arange(count) * 7919
    noise = gumbel(keys, torch.ones(count, dtype=torch.int64), torch.arange(SMALL))
    return np.bincount((p.log() + noise).argmax(-1).numpy(), minlength=SMALL)


@pytest.mark.parametrize(("rule", "lossless"), [(shared_noise_ratio_test, False), (coupled, True)])
def test_power_shared_noise_with_the_ratio_test_is_caught(
    rule: Callable[[Tensor, Tensor, int], np.ndarray], lossless: bool
) -> None:
    logits = table(1, SMALL, seed=1)
    p, q = logits[0].softmax(-1), noised(logits)[0].softmax(-1)
    assert (p_value(rule(p, q, 200_000), p.double().numpy()) > ALPHA) == lossless


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_tree_accepts_no_less_than_a_chain_of_its_nodes_and_depth(temperature: float) -> None:
    logits = table(256, 256, seed=6, sharpness=2.0)
    head = noised(logits, 1.0)

    def accepted(nodes: int, topk: int) -> float:
        rows, steps = 768, 6
        worker = toy_worker(logits, TableHead(head), rows, draft_temperature=1.0)
        crowd = Crowd(worker, rows, temperature, limit=64, prompts=256)
        crowd.start()
        shape = {"nodes": nodes, "depth": min(nodes - 1, 6), "topk": topk}
        return sum(int(crowd.decode(**shape).accepted.sum()) for _ in range(steps)) / (rows * steps)

    gains = {nodes: accepted(nodes, 4) / accepted(nodes, 1) for nodes in (2, 3, 4, 8, 16)}
    assert all(gain >= 0.99 for gain in gains.values()), gains
    assert gains[16] > 1.05, gains
