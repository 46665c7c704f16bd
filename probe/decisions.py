"""What the planner's decisions cost the host, and what they were, step by step. Used by `planner` and `drift`."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aerie.scheduler.planner.goodput import Goodput

_CALLS = ("prepare", "begin", "pays", "recomputes", "rests", "decide", "settle", "end")
WINDOW, AGREE = 16, 14
"""A planner has settled once so many of so many steps in a row draft, or do not."""
_CLEAR = 0.8


@dataclass(slots=True)
class Decisions:
    """CPU seconds of a planner's calls."""

    seconds: float = 0.0
    """Of all of them: also to admit requests, and to learn."""
    chosen: list[float] = field(default_factory=list)
    """Of each call that decided a step, most of which only look at a choice that holds."""
    drafted: list[bool] = field(default_factory=list)
    """Whether each decode step drafted."""

    def watch(self, planner: Goodput) -> "Decisions":
        """Takes the time of every call from now on."""
        for name in _CALLS:
            setattr(planner, name, self._timed(name, getattr(planner, name)))
        return self

    def cell(self) -> dict[str, float]:
        """Microseconds of all calls, the mean of a step; and of a call that decides one, the 99th percentile."""
        late = float(np.quantile(self.chosen, 0.99)) if self.chosen else 0.0
        return {"decision_us": 1e6 * self.seconds / max(len(self.drafted), 1), "decision_us_p99": 1e6 * late}

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **named: Any) -> Any:
            began = time.thread_time()
            answer = call(*args, **named)
            took = time.thread_time() - began
            self.seconds += took
            if name == "decide":
                self.drafted.append(answer[0].drafts)
                self.chosen.append(took)
            elif name == "rests" and answer:
                self.drafted.append(False)
                self.chosen.append(took)
            return answer

        return timed


def recovery(drafted: list[bool]) -> int | None:
    """Steps after a change until the planner does what it settles on: it drafts in most steps, or in few.

    `drafted` are the steps since the change. None if they are too few, or if it settles on neither.
    """
    later = drafted[len(drafted) // 2 :]
    share = sum(later) / max(len(later), 1)
    if len(drafted) < 2 * WINDOW or 1 - _CLEAR < share < _CLEAR:
        return None
    return steps_until(drafted, drafts=share > 0.5)


def steps_until(drafted: list[bool], *, drafts: bool) -> int | None:
    """Steps before most of the next ones draft, or do not. None if that never comes."""
    agree = [one == drafts for one in drafted]
    return next((at for at in range(len(agree) - WINDOW + 1) if sum(agree[at : at + WINDOW]) >= AGREE), None)
