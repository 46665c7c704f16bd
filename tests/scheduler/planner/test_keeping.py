"""Head KV: what drafts promise is asked again as steps teach, and learned from even while no row may draft."""

import math
from dataclasses import replace

import pytest

from aerie.contracts.shape import chain_depths
from aerie.scheduler.planner.chains import Chains
from aerie.scheduler.planner.choice import Objective
from aerie.scheduler.planner.exploring import Exploring
from aerie.scheduler.planner.guard import MOST_KEPT, START, Guard
from aerie.scheduler.planner.held import HELD
from aerie.scheduler.planner.keeping import Asked, Keeping
from aerie.scheduler.planner.predictions import Predictions
from aerie.scheduler.planner.survival import Survival
from aerie.scheduler.planner.trials import Trials
from tests.scheduler.planner.planners import CHAINS, costs, pays, planner


def kept(learn=lambda: None, rows=4, **fields):
    """What keeps head KV on a simple machine, and the clock of its steps."""
    known, depths = costs(**fields), chain_depths(CHAINS)
    chains, survival = Chains(known, depths, Objective.GOODPUT, rows=rows), Survival(rows, [1], depths[-1])
    return Keeping(
        known, chains, survival, Predictions(known, Guard()), Trials(), Exploring(Guard()), learn
    ), survival.offsets


def test_steps_are_learned_from_before_drafts_are_asked_what_they_promise():
    learned = []
    keeping, now = kept(lambda: learned.append(now.now))
    for now.now in range(3 * HELD):
        pays(keeping, 4, 0.0, 800, prompt=40, answer=400, headed=0)
    assert learned == [0, 1, 2, 3, 4, 6, 9, 13, 19, 28, 42, 63, 94]
    pays(keeping, 2, 0.0, 800, prompt=40, answer=400, headed=0)
    assert len(learned) == 14, "other numbers of rows are asked for themselves"


def test_drafts_are_asked_what_they_promise_beside_rows_as_long_as_they_will_be():
    """Where many requests come at once, the others hold few tokens yet."""
    keeping, _ = kept(rows=8)
    contexts, promise = [], keeping._promise
    keeping._promise = lambda *asked: contexts.append(asked[-1]) or promise(*asked)
    for others in (0, 700, 5000):
        pays(keeping, 8, 0.0, others, prompt=100, answer=100, headed=0)
    assert contexts == [8 * 150, 8 * 150, 5000 + 150], "half of an answer of each row"


def test_beside_rows_that_draft_a_head_pays_by_the_time_for_which_it_frees_its_row():
    asked = {"answer": 40, "headed": 7}
    (first, _), (keeping, _) = (kept(rows=8, per_token=1e-4, pair=1e-5) for _ in range(2))
    assert not pays(first, 8, 0.0, 800, prompt=600, **asked), (
        "if all began to draft, heads would cost more than they gain"
    )
    for _ in range(32):
        pays(keeping, 8, 0.0, 800, prompt=20, drafting=7, **asked)
    assert pays(keeping, 8, 0.0, 800, prompt=600, drafting=7, **asked), "of a few long prompts among short ones, too"
    assert not pays(keeping, 8, 0.0, 800, prompt=6000, drafting=7, **asked)


@pytest.mark.parametrize("drafting", [0, 7])
def test_no_head_pays_where_all_would_be_done_sooner_without(drafting):
    """Beside rows that draft a head would pay for each of these, but then all have one and cost more than they gain."""
    keeping, _ = kept(rows=8, per_token=1e-4, pair=1e-5)
    asked = {"prompt": 150, "answer": 40, "headed": 7, "drafting": drafting}
    assert not any(pays(keeping, 8, 0.0, 800, **asked) for _ in range(99))
    promise = keeping._promise(8, 0.0, 1600)
    own = keeping._costs.catch_up(150)
    assert promise.saved(40, 1.0) > 8 * own > promise.saved(40, 0.0)


def test_the_account_pays_for_tokens_that_the_target_computes_again():
    """Pages that plain rows have filled spare a plain row their tokens, and no row that drafts."""
    asked, plain, heads = {"prompt": 64, "answer": 24, "headed": 7}, 60 * 1e-4 / (1e-3 + 8e-4 + 1e-5), {}
    for again in (0, 60):
        keeping, _ = kept(rows=8, per_token=1e-4, pair=1e-6)
        heads[again] = sum(pays(keeping, 8, 0.0, 800, again=again, **asked) for _ in range(999))
    assert heads[60] == math.ceil(START / keeping.cost) < heads[0] / 9
    assert keeping.cost == pytest.approx(plain, rel=0.2)
    pays(keeping, 8, 0.0, 800, **asked)
    assert 0.9 * plain < keeping.cost < 1.2 * plain, "a mean over prompts"


@pytest.mark.parametrize(("usual", "begin"), [(20, True), (150, False)])
def test_at_rest_all_requests_begin_to_draft_or_none(usual, begin):
    """Else the rows that have no head would hold up those that do: the mean of prompts decides."""
    keeping, _ = kept(rows=8, per_token=1e-4, pair=1e-5)
    asked = {"answer": 40, "headed": 7}
    assert pays(keeping, 8, 0.0, 800, prompt=usual, **asked) == begin
    assert [pays(keeping, 8, 0.0, 800, prompt=prompt, **asked) for prompt in (20, 150)] == [begin, begin]


def test_a_row_whose_answer_has_ended_takes_what_a_step_takes_whatever_rows_it_has():
    """One step late it is known that it has. A device that skips it spares its part."""
    fixed, (shared, _) = costs().plain(1, 0), kept(rows=8)
    apart = costs(per_token=1e-3)
    each, _ = kept(rows=8, per_token=1e-3)
    assert shared._promise(8, 0.0, 800).late == pytest.approx(1.0, abs=0.05)
    assert each._promise(8, 0.0, 800).late == pytest.approx(fixed / apart.plain(8, 800), rel=0.2)
    assert each._promise(1, 0.0, 100).late > each._promise(7, 0.0, 700).late > 0.0


def test_drafts_save_something_of_a_short_answer_where_ended_rows_are_skipped():
    """A whole drafting step at its end would be more than they save of it."""
    keeping, _ = kept(rows=8, per_token=1e-4, pair=1e-6)
    promise = keeping._promise(8, 0.0, 800)
    assert promise.saved(8, 0.0) > 0.0 > replace(promise, late=1.0).saved(8, 0.0)


def again(keeping, prompt, answer, *, rows=8, answered=0, drafting=7):
    """Whether a row computes its tokens again, where the usual request reads and answers 100."""
    pays(keeping, rows, 0.0, 100 * rows, prompt=100, answer=100)
    return keeping.recomputes(Asked(rows, 0.0, 100 * rows, prompt, answer, answered=answered), drafting=drafting)


def test_a_row_computes_its_tokens_again_if_that_frees_it_soon_enough():
    keeping, _ = kept(rows=8, per_token=1e-5, pair=1e-6)
    assert again(keeping, 100, 100) and again(keeping, 100, 100, drafting=0)
    assert not again(keeping, 100, 4), "all the others wait while it does"
    assert not again(keeping, 100, 100, answered=127), "answers of so many tokens are over soon"
    assert not again(keeping, 6000, 100)


def test_rows_that_do_so_are_counted():
    goodput = planner(per_token=1e-5, pair=1e-6)
    pays(goodput, 8, 0.0, 800, prompt=100, answer=100)
    for answer in (100, 4, 100):
        goodput.recomputes(Asked(8, 0.0, 800, 100, answer), headed=7)
    assert goodput.outcome.snapshot().recomputed == 2, "one was too short"


def test_alone_it_does_so_too():
    keeping, _ = kept(rows=8, per_token=1e-5, pair=1e-6)
    assert again(keeping, 100, 100, rows=1, drafting=0)


def test_no_row_does_so_for_drafts_that_do_not_pay():
    keeping, _ = kept(rows=8, level=2e-3)
    assert not again(keeping, 10, 100)


def test_one_long_answer_gets_a_head_though_many_short_ones_have_not_repaid_theirs():
    keeping, _ = kept(rows=8)
    long = {"prompt": 200, "answer": 200, "headed": 0}
    keeping._trials.budget = keeping._trials._first = 0.0  # no trial pays
    keeping._guard.keep(8, MOST_KEPT)
    assert not pays(keeping, 8, 0.0, 800, **long) and pays(keeping, 1, 0.0, 0, **long)
    keeping._guard.keep(1, MOST_KEPT)
    assert not pays(keeping, 1, 0.0, 0, **long), "neither account can pay"


def test_the_account_of_head_kv_pays_for_what_is_computed_again():
    keeping, _ = kept(rows=8, per_token=1e-5, pair=1e-6)
    times = sum(again(keeping, 200, 100) for _ in range(99))
    assert 1 < times < 9, "drafts must bring in what the first ones cost"


def test_no_row_computes_so_much_again_that_others_get_no_head():
    """One debt would keep all requests that come from drafting, until rests have paid for it."""
    (rich, _), (keeping, _) = (kept(rows=8, per_token=1e-5, pair=1e-6) for _ in range(2))
    keeping._guard.keep(8, 0.5 * START)
    keeping._trials.budget = keeping._trials._first = 0.0  # no trial pays
    assert again(rich, 400, 100) and not again(keeping, 400, 100), "it would pay, and the account cannot"
    assert pays(keeping, 8, 0.0, 800, prompt=100, answer=100, headed=7, drafting=7)
