"""Step costs learned from samples: exactness, drift, and samples that cannot be true."""

import numpy as np
import pytest

from aerie.scheduler.planner.costs import StepCosts
from aerie.scheduler.planner.regression import Regression
from aerie.scheduler.planner.work import StepWork


def truth(work, speed=1.0):
    """The phases of a machine whose pass goes up at 33 and at 129 tokens."""
    verify = 1e-3 + 1e-5 * work.tokens + 1e-3 * (work.tokens > 32) + 2e-3 * (work.tokens > 128)
    verify += 1e-7 * work.context
    phases = {"verify": verify * speed}
    if work.levels:
        phases["draft"] = (1e-4 + work.levels * (2e-4 + 5e-6 * work.frontier)) * speed
        phases["extend"] = (2e-4 + 1e-5 * work.pairs) * speed
    return phases


def works(source, count):
    for _ in range(count):
        rows = int(source.choice([1, 2, 4, 8, 16, 32, 64]))
        levels = int(source.choice([0, 1, 3, 6]))
        yield StepWork(
            rows=rows,
            tokens=rows * (levels + 1),
            context=rows * int(source.integers(10, 500)),
            levels=levels,
            frontier=rows if levels else 0,
            pairs=rows * (levels + 1) if levels else 0,
        )


def learned(seed=0, count=400, speed=1.0, costs=None, real=truth):
    source = np.random.default_rng(seed)
    costs = costs or StepCosts(512)
    for work in works(source, count):
        noisy = {name: value * source.uniform(0.95, 1.05) for name, value in real(work, speed).items()}
        costs.observe(work, noisy, 1e-4 * speed)
    return costs


def predicted(costs, rows, levels, context):
    frontier = rows if levels else 0
    if not levels:
        return costs.plain(rows, context)
    step = costs.table(rows, context, rows * (levels + 1) + 1)[rows * (levels + 1)]
    return step + costs.draft(levels, frontier) + (costs.pair + costs.several(rows, context)) * rows


@pytest.mark.parametrize(("rows", "levels"), [(8, 3), (64, 0), (64, 1), (64, 6)])
def test_rows_with_several_nodes_are_not_taken_for_context(rows, levels):
    """Else steps that draft would make plain ones look as dear, which have as much context."""

    def real(work, speed=1.0):
        phases = truth(work, speed)
        return phases | {"verify": phases["verify"] + 5e-5 * work.frontier * speed}

    frontier, pairs = (rows, rows * (levels + 1)) if levels else (0, 0)
    work = StepWork(rows, rows * (levels + 1), rows * 200, levels, frontier, pairs)
    costs = learned(real=real)
    assert predicted(costs, rows, levels, rows * 200) == pytest.approx(sum(real(work).values()) + 1e-4, rel=0.15)
    assert costs.several(rows, rows * 200) == pytest.approx(5e-5, rel=0.35) and costs.several(rows, 0) == 0.0


@pytest.mark.parametrize("speed", [1.0, 3.0])
@pytest.mark.parametrize(("rows", "levels"), [(1, 0), (1, 6), (8, 3), (64, 0), (64, 1), (64, 6)])
def test_costs_are_learned_and_followed(rows, levels, speed):
    costs = learned()
    if speed != 1.0:
        learned(seed=1, speed=speed, costs=costs)
    frontier, pairs = (rows, rows * (levels + 1)) if levels else (0, 0)
    work = StepWork(rows, rows * (levels + 1), rows * 200, levels, frontier, pairs)
    real = sum(truth(work, speed).values()) + 1e-4 * speed
    assert predicted(costs, rows, levels, rows * 200) == pytest.approx(real, rel=0.25)


def test_a_table_never_falls_and_is_never_zero():
    costs = StepCosts(512)
    for count in (1, 64, 300):  # samples that fall with the tokens
        costs.observe(StepWork(1, count, 0), {"verify": 1e-2 / count}, 0.0)
        table = costs.table(1, 0, 500)
        assert (np.diff(table) >= 0).all() and table[0] > 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, 1e9])
def test_samples_that_cannot_be_true_change_nothing(bad):
    costs = learned()
    before = predicted(costs, 8, 3, 800)
    work = StepWork(8, 32, 800, 3, 8, 16)
    costs.observe(work, {"verify": bad, "draft": bad, "extend": bad}, bad if bad == bad else None)
    assert predicted(costs, 8, 3, 800) == pytest.approx(before, rel=0.3)
    costs.observe(StepWork(0, 0, 0), {}, None)
    assert np.isfinite(costs.table(8, 800, 400)).all()


def test_one_stall_moves_a_prediction_little():
    costs = learned()
    before = costs.plain(8, 800)
    costs.observe(StepWork(8, 8, 800), {"verify": 2.0}, 0.0)
    assert costs.plain(8, 800) < 1.5 * before


def test_hostile_samples_keep_the_covariance_finite():
    source = np.random.default_rng(3)
    fit = Regression(np.zeros(4), np.ones(4))
    for _ in range(2000):
        fit.update(source.choice([0.0, 1e-9, 1.0, 1e6], 4), float(source.choice([0.0, 1e-9, 59.0, np.nan])))
    assert np.isfinite(fit.weights).all() and np.isfinite(fit.predict(np.ones(4)))


def test_weights_that_no_sample_tells_apart_stay_near_what_a_calibration_has_shown():
    source, costs = np.random.default_rng(5), learned()
    costs.anchor()
    before = costs.plain(1, 100)
    for _ in range(3000):  # one row that always drafts, on a machine whose speed changes
        work = StepWork(1, int(source.integers(2, 8)), 100, 3, 1, 3)
        noisy = {name: value * source.uniform(0.5, 2.0) for name, value in truth(work).items()}
        costs.observe(work, noisy, None)
    assert costs.plain(1, 100) == pytest.approx(before, rel=0.4)


def test_late_samples_count_as_much_as_early_ones():
    costs, source, predictions = learned(), np.random.default_rng(2), []
    costs.anchor()
    real = sum(truth(StepWork(1, 1, 0)).values()) + 1e-4
    for _ in range(400):
        costs.observe(StepWork(1, 1, 0), {"verify": (real - 1e-4) * source.choice([0.5, 1.5])}, 1e-4)
        predictions.append(costs.plain(1, 0))
    assert np.mean(predictions[-200:]) == pytest.approx(real, rel=0.1)


def test_tokens_of_a_prompt_take_a_share_of_what_as_many_take_that_verify():
    costs = learned()
    verified = costs.prompt_token()
    assert verified == pytest.approx(1e-5, rel=0.2), "of a pass that goes up by a step at 33 tokens"
    costs.like_prompts([24], [0.5 * costs._verify.predict(StepWork(1, 24, 12))])
    assert costs.prompt_token() == pytest.approx(0.5 * verified)


def test_prompts_show_what_tokens_cost_by_now_where_steps_verify_few():
    """A neighbour that slows a core's arithmetic slows what verifies many tokens, and hardly a plain step."""

    def verify(tokens, token):
        return 1e-3 + token * tokens

    def taught(prompts):
        costs = StepCosts(64)
        for tokens in (1, 2, 4, 8, 16, 64):
            costs.observe(StepWork(tokens, tokens, 0), {"verify": verify(tokens, 3e-4)}, 1e-5)
        if prompts:
            costs.like_prompts([16, 64], [0.8 * verify(tokens, 3e-4) for tokens in (16, 64)])
        costs.anchor()
        for _ in range(60):
            costs.observe(StepWork(1, 1, 0), {"verify": verify(1, 1e-4)}, 1e-5)
            costs.observe_prompts(StepWork(1, 24, 12), 0.8 * verify(24, 1e-4))
        return costs.table(1, 0, 17)[16]

    assert taught(prompts=True) == pytest.approx(verify(16, 1e-4), rel=0.25)
    assert taught(prompts=False) > 1.5 * verify(16, 1e-4)


def test_the_first_gaps_are_soon_forgotten():
    """A gap far from the first guess was believed as if it were exact, and thousands of steps had to undo it."""
    costs = StepCosts(64, unit=1e-3)
    for seconds in (1.4e-3, 0.9e-3, *20 * [0.3e-3]):
        costs.observe(StepWork(1, 4, 100, 3, 1, 4), {"verify": 1e-3, "draft": 4e-4, "extend": 2e-4}, seconds)
    assert costs.gap(StepWork(1, 4, 100, 3, 1, 4)) < 0.45e-3


PLAIN, CHAIN = StepWork(8, 8, 800), StepWork(8, 32, 800, 3, 8, 32)


@pytest.mark.parametrize(("seen", "other"), [(PLAIN, CHAIN), (CHAIN, PLAIN)], ids=["plain", "drafts"])
def test_a_gap_is_alike_with_drafts_and_without_until_both_are_known(seen: StepWork, other: StepWork) -> None:
    """A few long gaps, of the first drafts, stood for all that drafts would have, so that nothing was drafted again."""
    costs = StepCosts(64, unit=1e-3)
    for _ in range(5):
        costs.observe(other, {"verify": 1e-3}, 1.7e-3)
    for _ in range(100):
        costs.observe(seen, {"verify": 1e-3}, 0.5e-3)
    assert costs.gap(seen) == pytest.approx(0.5e-3, abs=0.1e-3)
    assert costs.gap(other) == pytest.approx(costs.gap(seen), abs=0.25e-3)
    for _ in range(100):
        costs.observe(seen, {"verify": 1e-3}, 0.5e-3)
        costs.observe(other, {"verify": 1e-3}, 1.1e-3)
    assert costs.gap(other) - costs.gap(seen) > 0.3e-3, "where they differ, they are told apart"
