"""Steps whose rows have all ended: nothing is computed, and what comes after is what it would have been."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerie.contracts.sampling import SamplingParams
from aerie.engine.model.target import TargetModel
from aerie.engine.step.plain_worker import PlainWorker
from tests.engine.rounds import Rounds
from tests.engine.step.test_plain_worker import make_worker

Models = Callable[[str], tuple[Path, Any]]
SHORT = SamplingParams(temperature=0, max_tokens=3)
LONG = SamplingParams(temperature=0, max_tokens=9)


class Passes:
    """Counts the target's passes."""

    def __init__(self, worker: PlainWorker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        target: TargetModel = worker.state.target
        forward = target.forward

        def counted(*given: Any, **named: Any) -> Any:
            self.count += 1
            return forward(*given, **named)

        monkeypatch.setattr(target, "forward", counted)


def test_nothing_is_computed_for_rows_that_have_all_ended(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker(models("llama")[0])
    rounds = Rounds(worker)
    rows = [rounds.add(0, [5, 6], SHORT), rounds.add(1, [7, 8, 9], SHORT)]
    rounds.finish(rows)
    passes = Passes(worker, monkeypatch)
    output = rounds.decode(rows)
    assert passes.count == 0
    assert output.counts.tolist() == [0, 0]
    assert output.lengths.tolist() == [row.length for row in rows]
    assert output.endings.tolist() == [0, 0]


def test_one_open_row_is_reason_to_work(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker(models("llama")[0])
    rounds = Rounds(worker)
    short, long = rounds.add(0, [5, 6], SHORT), rounds.add(1, [50, 51], LONG)
    rounds.finish([short])
    passes = Passes(worker, monkeypatch)
    output = rounds.decode([short, long])
    assert passes.count == 1
    assert output.counts.tolist() == [0, 1]


def test_a_row_whose_neighbors_rested_goes_on(models: Models) -> None:
    folder = models("llama")[0]
    rounds, alone = Rounds(make_worker(folder)), Rounds(make_worker(folder))
    short, long = rounds.add(0, [5, 6], SHORT), rounds.add(1, [50, 51], LONG)
    rounds.finish([short])
    rounds.decode([short])
    rounds.finish([long])
    undisturbed = alone.add(1, [50, 51], LONG)
    alone.finish([undisturbed])
    assert long.out == undisturbed.out
