"""One warning for a head that stays far below its card, and none for one that has a bad hour."""

import logging
from dataclasses import dataclass, field

import pytest

from aerie.contracts.messages import Snapshot
from aerie.server.telemetry.head_watch import BAD_WINDOWS, FAR_BELOW, WINDOW_DRAFTS, HeadWatch, Promise
from tests.server.conftest import Start
from tests.server.fake_scheduler import FakeScheduler

PROMISE = Promise("some/head", (0.6, 0.3), "its card")
GOOD, BAD = (0.5, 0.3), (0.2, 0.1)


@dataclass
class Scheduler:
    """Counters that grow, as a snapshot tells them."""

    drafts: int = 0
    accepted: list[int] = field(default_factory=lambda: [0, 0, 0])

    def after(self, drafts: int, shares: tuple[float, ...]) -> Snapshot:
        self.drafts += drafts
        self.accepted = [
            count + round(drafts * share) for count, share in zip(self.accepted, (*shares, 0.0), strict=False)
        ]
        counts = dict.fromkeys(("running", "waiting", "pages_used", "prefix_queries", "prefix_hits"), 0)
        counts |= dict.fromkeys(("preemptions", "steps", "prefill_tokens", "drafted", "committed"), 0)
        seconds = {"idle_seconds": 0.0, "busy_seconds": 0.0, "host_seconds": 0.0}
        return Snapshot(
            **counts,
            **seconds,
            pages_total=1,
            phase_seconds={},
            step_tokens=[],
            drafts=self.drafts,
            accepted=sum(self.accepted),
            accepted_per_position=list(self.accepted),
        )


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "aerie.head")
    return caplog


def seen(*windows: tuple[float, ...], drafts: int = WINDOW_DRAFTS) -> None:
    watch, scheduler = HeadWatch(PROMISE), Scheduler()
    for shares in windows:
        watch.look(scheduler.after(drafts, shares))


def test_the_promise_is_a_length_with_the_bonus() -> None:
    assert PROMISE.length == pytest.approx(1.9)
    assert sum(BAD) < FAR_BELOW * 0.9 < sum(GOOD)


def test_a_head_that_keeps_its_promise_is_not_spoken_of(warnings: pytest.LogCaptureFixture) -> None:
    seen(*[GOOD] * 10)
    assert not warnings.records


def test_a_head_that_stays_far_below_is_spoken_of_once(warnings: pytest.LogCaptureFixture) -> None:
    seen(*[BAD] * 10)
    [record] = warnings.records
    said = record.getMessage()
    assert "some/head commits 1.30 tokens a step over its first 2 positions; its card promises 1.90 (its card)" in said
    for cause in ("chat template", "fine-tune", "eagle_aux_hidden_state_layer_ids", "RoPE base", "spec.head=none"):
        assert cause in said


def test_it_takes_several_bad_windows_in_a_row(warnings: pytest.LogCaptureFixture) -> None:
    seen(*([BAD] * (BAD_WINDOWS - 1) + [GOOD]) * 4)
    assert not warnings.records, "one hard text does not warrant a warning"
    seen(GOOD, *[BAD] * BAD_WINDOWS)
    assert len(warnings.records) == 1, "a good beginning does not hide what follows"


def test_few_drafts_are_no_judgment(warnings: pytest.LogCaptureFixture) -> None:
    seen(*[BAD] * 4, drafts=WINDOW_DRAFTS // 4)
    assert not warnings.records
    seen(*[BAD] * 4 * BAD_WINDOWS, drafts=WINDOW_DRAFTS // 4)
    assert len(warnings.records) == 1


def test_depths_beyond_the_promise_do_not_count(warnings: pytest.LogCaptureFixture) -> None:
    seen(*[(0.2, 0.1, 0.9)] * 4)
    assert len(warnings.records) == 1


async def test_a_server_is_told_by_its_scheduler(start: Start, warnings: pytest.LogCaptureFixture) -> None:
    """The way from a snapshot on the wire to the warning."""
    scheduler = Scheduler()
    async with start() as live:
        live.service.engine.on_snapshot = HeadWatch(PROMISE).look
        fake: FakeScheduler = live.fake
        fake._snapshot = lambda: scheduler.after(WINDOW_DRAFTS, BAD)  # type: ignore[method-assign]
        await live.client().chat.completions.create(model="demo", messages=[{"role": "user", "content": "hi"}])
        await live.idle()
    assert len(warnings.records) == 1
