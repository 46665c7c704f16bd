"""The comparison has every cell, finds speculation to be lossless, and finds it out when it is not."""

from dataclasses import replace

import pytest

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.spec_section import LoadShape
from aerie.contracts.step import Capacity, Lane, StepOutput, StepPlan
from aerie.probe.compare import Grid, compare
from tests.probe.conftest import PROMPTS, make_lane

KEYS = {
    "mode", "temperature", "concurrency", "overlap", "dtype", "tokens_per_s", "speedup", "acceptance_length",
    "acceptance_per_position", "identical", "idle_share", "ttft", "mismatches",
}  # fmt: skip
SMALL = Grid(temperatures=(0.0, 0.8), concurrencies=(1, 4), dtypes=("float32",), synchronous_at=(4,), max_tokens=12)


def test_every_cell_is_there_and_every_answer_the_same(config: Config) -> None:
    preset = config.spec.model_copy(update={"by_load": (LoadShape(rows=1, depth=2, topk=1, nodes=3),)})
    said: list[str] = []
    cells = compare(config.model_copy(update={"spec": preset}), PROMPTS, make_lane, SMALL, say=said.append)
    places = [(cell["temperature"], cell["concurrency"], cell["overlap"], cell["mode"]) for cell in cells]
    assert places == [
        (temperature, load, overlap, mode)
        for temperature in (0.0, 0.8)
        for load, overlap in ((1, True), (4, True), (4, False))
        for mode in ("off", "chain", "tree", "preset")
    ]
    assert len(said) == 6
    for cell in cells:
        assert cell.keys() >= KEYS
        assert (cell["identical"], cell["mismatches"], cell["unexplained"]) == (1.0, [], 0)
        assert cell["tokens_per_s"] > 0 and cell["ttft"] > 0 and 0 <= cell["idle_share"] < 1
        assert 1 <= cell["acceptance_length"] <= 4
    for cell in cells:
        drafts = cell["mode"] in ("chain", "tree") or (cell["mode"] == "preset" and cell["concurrency"] == 1)
        assert bool(cell["acceptance_per_position"]) == drafts
        assert cell["speedup_spread"][0] <= cell["speedup"] <= cell["speedup_spread"][1]
        assert cell["speedup_interval"][0] <= cell["speedup_interval"][1]
        assert cell["acceptance_interval"][0] <= cell["acceptance_length"] <= cell["acceptance_interval"][1]
        assert cell["requests"] == len(PROMPTS) * (5 if cell["overlap"] else 1)  # so few that each round asks all
    assert {cell["shape"] for cell in cells} == {"none", "chain 2", "tree 2,4,6"}
    assert all(cell["speedup"] == 1 for cell in cells if cell["mode"] == "off")


class _Liar:
    """A lane that replaces one token of what speculation commits."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._drafted = 0

    @property
    def capacity(self) -> Capacity:
        return self._lane.capacity

    def launch(self, plan: StepPlan) -> None:
        self._lane.launch(plan)

    def settle(self) -> StepOutput:
        output = self._lane.settle()
        self._drafted += bool(output.drafted.any())
        if self._drafted != 30 or not output.counts.any():
            return output
        self._drafted += 1
        return replace(output, token_ids=(output.token_ids + 1) % self.capacity.vocabulary)

    def close(self) -> None:
        self._lane.close()


def test_a_changed_token_is_a_mismatch_that_nothing_excuses(config: Config) -> None:
    grid = Grid(temperatures=(0.8,), concurrencies=(1,), dtypes=("float32",), max_tokens=12)
    cells = compare(config, PROMPTS, lambda config: _Liar(make_lane(config)), grid)
    wrong = [cell for cell in cells if cell["identical"] < 1]
    assert len(wrong) == 1 and wrong[0]["mode"] == "chain"
    assert wrong[0]["identical"] == 1 - 1 / wrong[0]["requests"]
    assert wrong[0]["unexplained"] == 1 and not wrong[0]["mismatches"][0]["excused"]


def test_a_target_without_a_head_has_nothing_to_compare(config: Config) -> None:
    bare = config.model_copy(update={"spec": config.spec.model_copy(update={"head": "none"})})
    with pytest.raises(ConfigError, match="no head to compare with"):
        compare(bare, PROMPTS, make_lane, SMALL)
