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


def test_rows_that_came_first_last_as_long_as_the_others(config: Config) -> None:
    """They decode while the others' prompts are computed: with 256 rows, a seventh had ended before the last step."""
    slow = config.model_copy(
        update={
            "scheduler": config.scheduler.model_copy(update={"prefill_chunk": 4}),
            "model": config.model.model_copy(update={"max_length": 240}),
            "engine": config.engine.model_copy(update={"kv_tokens": 1024}),
            "spec": config.spec.model_copy(update={"head": "none"}),
        }
    )
    with closing(Watched(slow)) as lane:
        run = steady(lane, slow, rows=2, prompt=100, steps=3)
    assert run.committed == run.rows * run.steps
