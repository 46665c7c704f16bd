"""The recomputed choice is the lane's own, and only near ties are excused."""

import pytest

from aerie.contracts.config import Config
from aerie.probe.drive import ask, drive
from aerie.probe.margins import Divergence, Margins
from tests.probe.conftest import PROMPTS, make_lane


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_best_is_what_the_lane_chose(config: Config, temperature: float) -> None:
    run = drive(make_lane(config), config, ask(PROMPTS, [temperature], max_tokens=20), concurrency=4)
    margins = Margins(config)
    for answer in run.answers[:3]:
        assert margins.divergence(answer.request, answer.tokens, answer.tokens) is None
        for place in (0, 7, 19):
            choice = margins.choice(answer.request, answer.tokens[:place])
            assert choice.best[0] == answer.tokens[place] and choice.margin > 0
            found = margins.divergence(answer.request, answer.tokens, [*answer.tokens[:place], choice.best[1], 5])
            assert found is not None and found.position == place and found.gap == found.margin
            assert (found.tokens, found.margin, found.rounding) == (choice.best, choice.margin, choice.rounding)
            other = next(token for token in range(64) if token not in choice.best)
            found = margins.divergence(answer.request, answer.tokens, [*answer.tokens[:place], other])
            assert found is not None and found.gap > found.margin


def test_a_shorter_answer_is_never_excused(config: Config) -> None:
    request = ask(PROMPTS, [0.0], max_tokens=4)[0]
    found = Margins(config).divergence(request, [1, 2, 3], [1, 2])
    assert found is not None and found.tokens == (3, -1) and not found.explained


@pytest.mark.parametrize(
    ("gap", "rounding", "excused", "explained"),
    [(9e-5, 1e-6, True, True), (2e-4, 1e-6, False, False), (0.1, 0.04, False, True), (0.2, 0.04, False, False)],
)
def test_only_near_ties_are_excused(gap: float, rounding: float, excused: bool, explained: bool) -> None:
    found = Divergence("a", 3, (5, 6), margin=gap, gap=gap, rounding=rounding)
    assert (found.excused, found.explained) == (excused, explained)
