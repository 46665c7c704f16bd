"""A closed loop asks everything once and measures what the requests say of themselves."""

import pytest

from aerie.contracts.config import Config
from aerie.contracts.errors import AerieError
from aerie.probe.drive import ask, drive
from tests.probe.conftest import PROMPTS, make_lane


def test_figures_follow_from_the_answers(config: Config) -> None:
    requests = ask(PROMPTS, [0.0, 0.9], max_tokens=16)
    assert [request.sampling.temperature for request in requests] == [0.0, 0.9, 0.0, 0.9]
    run = drive(make_lane(config), config, requests, concurrency=3)
    assert [answer.request.id for answer in run.answers] == [request.id for request in requests]
    usages = [answer.usage for answer in run.answers]
    assert all(usage is not None and usage.completion_tokens == 16 for usage in usages)
    steps = sum(usage.steps for usage in usages if usage)
    assert run.acceptance_length == pytest.approx(4 * 15 / steps)
    per_position = [sum(usage.accepted_per_position[d] for usage in usages if usage) / steps for d in range(3)]
    assert run.acceptance_per_position == pytest.approx(per_position)
    assert run.tokens_per_s == pytest.approx(64 / run.seconds)
    for answer in run.answers:
        assert answer.finish == "length" and 0 < answer.ttft <= answer.seconds <= run.seconds
    assert run.busy_seconds > 0 and 0 <= run.idle_share < 1


def test_concurrency_bounds_what_is_open(config: Config) -> None:
    lane = make_lane(config)
    most = 0

    class Watched:
        capacity = lane.capacity
        settle, close = lane.settle, lane.close

        def launch(self, plan):
            nonlocal most
            most = max(most, len(plan.rows))
            lane.launch(plan)

    drive(Watched(), config, ask(PROMPTS, [0.0], max_tokens=6), concurrency=2)
    assert most == 2


def test_a_request_that_fails_ends_the_run(config: Config) -> None:
    with pytest.raises(AerieError, match="request-0 failed: the prompt has 500 tokens"):
        drive(make_lane(config), config, ask([[1] * 500], [0.0], max_tokens=4), concurrency=1)
