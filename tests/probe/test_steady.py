"""A steady batch: rows of the kind that a cell names, and nothing else measured."""

from contextlib import closing

import pytest

from aerie.contracts.config import Config
from aerie.contracts.step import StepOutput, StepPlan
from aerie.engine.lanes.inline import InlineLane
from aerie.engine.sampling.choose import Needs
from aerie.probe.gpu_bench import SAMPLING
from aerie.probe.steady import steady
from aerie.worker import build_launcher


class Watched(InlineLane):
    """Keeps what the rows of each step need."""

    def __init__(self, config: Config) -> None:
        self._built = build_launcher(config)
        super().__init__(self._built)
        self.needs: set[Needs] = set()

    def launch(self, plan: StepPlan) -> None:
        super().launch(plan)
        self.needs.add(self._built.state.needs.of(plan.rows))

    def settle(self) -> StepOutput:
        return super().settle()


@pytest.mark.parametrize("kind", SAMPLING)
def test_rows_are_of_the_kind_that_is_measured(config: Config, kind: str) -> None:
    """A greedy cell whose rows sample would take the sampled graphs, with their noise over the whole vocabulary."""
    with closing(Watched(config)) as lane:
        run = steady(lane, config, rows=2, prompt=5, steps=2, sampling=SAMPLING[kind])
    noise, filters = kind != "greedy", kind == "filtered"
    assert lane.needs == {Needs(noise=noise, filters=filters, bans=False)}
    assert run.rows == 2 and run.steps == 2 and run.committed >= 4


def test_rows_are_greedy_unless_said(config: Config) -> None:
    with closing(Watched(config)) as lane:
        steady(lane, config, rows=1, prompt=5, steps=1)
    assert not any(needs.noise for needs in lane.needs)
