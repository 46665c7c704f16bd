"""Intervals over prompts and seeds, and what they call noise."""

from typing import Any

import numpy as np
import pytest

from aerie.train.experiments.intervals import ALL, add_intervals, resampled
from aerie.train.experiments.table import means


def _counts(rng: np.random.Generator, *, seeds: float, prompts: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[5 seeds, 40 prompts, 2] of length 2, with these spreads."""
    lengths = 2 + seeds * rng.standard_normal((5, 1)) + prompts * rng.standard_normal((1, 40))
    steps = np.full((5, 40), 30.0)
    return np.stack([steps, steps * lengths], -1)


@pytest.mark.parametrize(("seeds", "prompts"), [(0.1, 0.0), (0.0, 0.3), (0.1, 0.3)])
def test_resamples_spread_as_means_do(seeds: float, prompts: float) -> None:
    """The oracle: the spread of the mean over as many fresh seeds and prompts. On average over data sets."""
    rng = np.random.default_rng(3)
    found = [_counts(rng, seeds=seeds, prompts=prompts) for _ in range(60)]
    expected = np.hypot(seeds / 5**0.5, prompts / 40**0.5)
    variances = [resampled({"code": one}, arm=0)["code"].var() for one in found]
    assert np.mean(variances) ** 0.5 == pytest.approx(expected, rel=0.1)
    assert np.std([one[..., 1].sum() / one[..., 0].sum() for one in found]) == pytest.approx(expected, rel=0.35)


def test_all_tasks_weigh_the_same() -> None:
    short, long = (np.stack([np.full((2, 3), 10.0), np.full((2, 3), 10.0 * length)], -1) for length in (2, 4))
    drawn = resampled({"code": short, "edits": np.repeat(long, 9, axis=1)}, arm=0)
    assert np.allclose(drawn[ALL], 3.0) and np.allclose(drawn["code"], 2.0)


def _cells(arm: str, lengths: list[list[float]]) -> list[dict[str, Any]]:
    """A cell of each seed: of every prompt 20 steps, and as many tokens as give its length."""
    return [
        {"arm": arm, "seed": seed, "answers": 8, "task": "code", "shape": "5,1,6", "temperature": 0.0}
        | {"acceptance_length": sum(own) / len(own), "by_answer": [[20, 20 * length] for length in own]}
        for seed, own in enumerate(lengths)
    ]


def test_a_difference_says_whether_it_is_noise() -> None:
    prompts = [1.0, 2.0, 3.0, 4.0]  # prompts differ much more than arms do: arms are compared on the same ones
    arms = {"first": 0.0, "near": 0.05, "far": 0.5}
    cells = [
        cell
        for place, (arm, more) in enumerate(arms.items())
        for cell in _cells(arm, [[one + more + 0.05 * (seed - place) for one in prompts] for seed in range(3)])
    ]
    cells += _cells("single", [[one + 9 for one in prompts]])
    cells += [{**cell, "arm": "unlike", "by_answer": [*cell["by_answer"][::-1]]} for cell in cells[:3]]
    rows = means(cells)
    add_intervals(rows, cells, {"first": None} | dict.fromkeys(("near", "far", "single", "unlike"), "first"))
    found = {row["arm"]: row for row in rows}
    assert "beside" not in found["first"] and found["far"]["beside"] == "first"
    assert found["near"]["within_noise"] and found["far"]["within_noise"] is False
    assert found["single"]["within_noise"] is None
    assert found["far"]["difference_lower"] <= found["far"]["difference"] <= found["far"]["difference_upper"]
    one, far = (found[arm] for arm in ("first", "far"))
    spread = one["acceptance_length_upper"] - one["acceptance_length_lower"]
    assert far["difference_upper"] - far["difference_lower"] < spread / 2, "prompts are the same for both"
    unlike = found["unlike"]
    assert unlike["difference_lower"] < -0.5 < 0.5 < unlike["difference_upper"], "each prompt beside itself"


def test_equal_cells_have_equal_intervals() -> None:
    rng = np.random.default_rng(0)
    counts = {"code": _counts(rng, seeds=0.1, prompts=0.3)}
    assert np.array_equal(resampled(counts, arm=1)[ALL], resampled(counts, arm=1)[ALL])
    assert not np.array_equal(resampled(counts, arm=1)[ALL], resampled(counts, arm=2)[ALL])
