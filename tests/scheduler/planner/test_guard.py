"""The guard: predictions follow what steps really take, and drafting never loses more than the account holds."""

import math

import pytest

from aerie.scheduler.planner.guard import MOST, MOST_KEPT, SAVED, SAVED_KEPT, START, START_KEPT, Guard, bucket_of


def compared(guard: Guard, times: int, *, plain: float, drafting: float) -> None:
    """Four rows take so many seconds by turns, where 1 ms is predicted."""
    for _ in range(times):
        guard.compare(4, 1e-3, drafting, drafts=True)
        guard.compare(4, 1e-3, plain, drafts=False)


def test_predictions_are_scaled_to_what_steps_take():
    guard = Guard()
    for _ in range(100):
        guard.compare(4, 1e-3, 2e-3, drafts=True)
    assert guard.corrected(1e-3, 5, drafts=True) == pytest.approx(2e-3, rel=0.05)
    assert guard.corrected(1e-3, 1, drafts=True) == 1e-3, "sizes of batches have their own scales"


def test_drafts_say_something_of_plain_steps_until_those_are_seen():
    guard = Guard()
    for _ in range(100):
        guard.compare(4, 1e-3, 2e-3, drafts=True)
    assert 1.4e-3 < guard.corrected(1e-3, 4, drafts=False) < 1.9e-3
    compared(guard, 50, plain=1e-3, drafting=2e-3)
    assert guard.corrected(1e-3, 4, drafts=False) == pytest.approx(1e-3, rel=0.05)
    assert guard.corrected(1e-3, 4, drafts=True) == pytest.approx(2e-3, rel=0.05)


def test_a_machine_that_slows_down_does_not_make_drafts_dearer_than_plain_steps():
    guard = Guard()
    compared(guard, 50, plain=1e-3, drafting=1e-3)
    for _ in range(50):  # from here on all steps draft
        guard.compare(4, 1e-3, 1.5e-3, drafts=True)
    assert guard.corrected(1e-3, 4, drafts=False) == pytest.approx(1.5e-3, rel=0.15)


def test_drafts_without_samples_are_as_wrong_as_plain_steps():
    guard = Guard()
    for _ in range(100):
        guard.compare(4, 1e-3, 1.5e-3, drafts=False)
    assert guard.corrected(1e-3, 4, drafts=True) == pytest.approx(1.5e-3, rel=0.01)
    compared(guard, 100, plain=1.5e-3, drafting=2e-3)
    assert guard.corrected(1e-3, 4, drafts=True) == pytest.approx(2e-3, rel=0.05)
    assert guard.corrected(1e-3, 4, drafts=False) == pytest.approx(1.5e-3, rel=0.01)


def test_one_pause_hardly_moves_them():
    guard = Guard()
    guard.compare(4, 1e-3, 5.0, drafts=False)
    assert guard.corrected(1e-3, 4, drafts=False) < 1.1e-3


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, 0.0])
def test_nonsense_changes_nothing(bad):
    guard = Guard()
    guard.compare(4, bad, 1e-3, drafts=True)
    guard.compare(4, 1e-3, bad, drafts=True)
    guard.settle(4, 3, bad, 1e-3, bad, drafts=True)
    assert guard.corrected(1.0, 4, drafts=True) == 1.0 and math.isfinite(guard.account(4))


def test_losses_end_when_the_account_is_empty_and_rests_refill_it_slowly():
    guard, lost = Guard(), 0.0
    for _ in range(2000):
        if guard.allows(2):
            lost -= guard.settle(2, 1, 2, 1.3e-3, 1e-3, drafts=True)  # a token a row, in 1.3 plain steps
        else:
            guard.settle(2, 1, 2, 1e-3, 1e-3, drafts=False)
    assert START - 1 < lost <= START + 1 + SAVED * 2000
    assert guard.allows(64), "sizes of batches have their own accounts"


def test_past_gains_pay_for_few_losses():
    guard = Guard()
    guard.settle(1, 1000, 3000, 1.0, 1e-3, drafts=True)
    assert guard.account(1) == MOST


def test_head_kv_that_no_draft_repays_is_kept_ever_less():
    guard, kept = Guard(), 0
    for _ in range(2000):
        if guard.keeps(16):
            guard.keep(16, 0.5)
            kept += 1
        guard.settle(16, 1, 16, 1e-3, 1e-3, drafts=False)
    assert START - 1 < 0.5 * kept <= START + 1 + SAVED_KEPT * 2000


def test_drafts_of_any_batch_repay_head_kv():
    guard = Guard()
    guard.keep(4, 2 * START)
    assert not guard.keeps(4) and guard.allows(4), "what is paid already does not end drafting"
    guard.settle(16, 20, 1920, 80e-3, 4e-3, drafts=True)
    assert guard.keeps(4)


def test_what_many_rows_have_not_repaid_keeps_no_single_one_from_a_head():
    guard = Guard()
    guard.keep(8, MOST_KEPT)
    assert not guard.keeps(8) and not guard.keeps(15), "batches of one size share an account"
    assert guard.keeps(1)
    guard.keep(1, START_KEPT)
    assert not guard.keeps(1), "its own is empty, too"


def test_sizes():
    assert [bucket_of(rows) for rows in (1, 2, 3, 4, 64, 127, 128, 10**6)] == [0, 1, 1, 2, 6, 6, 7, 7]
