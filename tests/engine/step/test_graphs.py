"""Why steps are not recorded: `/config` says it under `graphs`."""

from types import SimpleNamespace
from typing import Any

import pytest

from aerie.engine.step.graphs import capturable
from tests.engine.stand_in import HeldDense, StandIn


class Ranks:
    """A target that several ranks run."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.attention = HeldDense()

    def agree(self, values: Any) -> Any:
        return values


def state_of(target: Any, runtime: Any) -> Any:
    return SimpleNamespace(target=target, runtime=runtime, capacity=SimpleNamespace(report={}))


@pytest.mark.parametrize(
    ("target", "wanted", "refusal", "said"),
    [
        (Ranks(1), False, None, "none: engine.graphs is false"),
        (Ranks(2), True, None, "none: 2 ranks share a step, and what they exchange is not recorded"),
        (SimpleNamespace(), True, None, "none: attention by the model itself cannot be recorded"),
        (Ranks(1), True, "the drafter is new", "none: the drafter is new"),
    ],
)
def test_what_keeps_steps_from_graphs_is_said(target: Any, wanted: bool, refusal: str | None, said: str) -> None:
    state = state_of(target, StandIn())
    assert capturable(state, wanted, refusal) is None and state.capacity.report == {"graphs": said}


def test_nothing_is_said_where_steps_are_recorded_and_on_a_cpu() -> None:
    state, on_cpu = state_of(Ranks(1), StandIn()), state_of(Ranks(1), None)
    assert capturable(state, True) is state.target.attention and state.capacity.report == {}
    assert capturable(on_cpu, True) is None and on_cpu.capacity.report == {}
