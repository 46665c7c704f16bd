"""Places are taken whole or not at all, and all come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerie.contracts.errors import BadRequest, Overloaded
from aerie.server.dispatch.admission import Admission


@given(counts=st.lists(st.integers(1, 6), max_size=30))
def test_never_more_than_there_are(counts: list[int]) -> None:
    admission = Admission(10)
    held: list[int] = []
    refused = 0
    for count in counts:
        try:
            admission.take(count)
            held.append(count)
        except Overloaded as full:
            refused += 1
            assert sum(held) + count > 10
            assert 1 <= full.retry_after <= 30
            if held:
                admission.give_back(held.pop(0))
        assert admission.taken == sum(held) <= 10
    assert admission.rejections["queue_full"] == refused


def test_a_request_that_can_never_fit_is_told_so() -> None:
    with pytest.raises(BadRequest, match="4 choices; the server has 3 places"):
        Admission(3).take(4)


def test_a_draining_server_takes_nobody() -> None:
    admission = Admission(3)
    admission.draining = True
    with pytest.raises(Overloaded) as refused:
        admission.take(1)
    assert refused.value.code == "draining"
    assert admission.rejections == {"queue_full": 0, "draining": 1, "starting": 0}


def test_a_place_given_back_twice_is_our_bug() -> None:
    admission = Admission(3)
    admission.take(1)
    admission.give_back(1)
    with pytest.raises(AssertionError, match="given back twice"):
        admission.give_back(1)
