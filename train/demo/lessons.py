"""Which tasks a run reads: more of those that its last judgement found wanting."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from aerie.train.progress import say

_LEAST = 0.1
"""Of its share a task keeps at least this part, that it be not forgotten."""

Rates = dict[str, float]


class Lessons:
    """The shares of the tasks' exercises; up to the first judgement after step `first` those that the run names.

    Judgements are kept in `folder`, so that a resumed run reads the same.
    """

    def __init__(
        self, shares: Mapping[str, float], folder: Path, *, every: int, judge: Callable[[], Rates], first: int = 0
    ) -> None:
        self._shares = shares
        self._folder = folder
        self._first = first
        self._every = every
        self._judge = judge

    def shares(self, step: int) -> Mapping[str, float]:
        """From `step` on, by the last judgement up to it."""
        judged = step // self._every * self._every
        if judged <= self._first:
            return self._shares
        rates: Rates = json.loads(self._file(judged).read_text())
        return {task: share * max(_LEAST, 1 - rates[task]) for task, share in self._shares.items()}

    def watch(self, done: int) -> None:
        """Judges after `done` steps where that is due."""
        if done % self._every:
            return
        rates = json.dumps(self._judge())
        say(f"step {done} exact {rates}")
        file = self._file(done)
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(".new")
        fresh.write_text(rates)
        fresh.rename(file)

    def _file(self, step: int) -> Path:
        return self._folder / f"{step}.json"
