"""`aerie probe trace`: tens of steps as a timeline of host and lane, overlapped and synchronous.

`timeline` draws the picture.
"""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from aerie.contracts.config import Config
from aerie.contracts.errors import AerieError
from aerie.contracts.step import Lane, StepKind
from aerie.probe.drive import MakeLane, Prompts, ask, drive, planner_of
from aerie.probe.lane_log import LaneLog, StepTimes
from aerie.probe.shapes import for_lane
from aerie.scheduler.planner.goodput import Goodput

_SETTLING = 6
"""Steps at the start of a run that are not shown."""


def trace(
    config: Config, prompts: Prompts, make_lane: MakeLane, *, steps: int = 30, temperature: float = 0.0
) -> dict[str, list[StepTimes]]:
    """`steps` consecutive steps of each loop, "overlapped" and "synchronous", all prompts at once on one lane."""
    loads = {"overlapped": True, "synchronous": False}
    wide = for_lane(config, (), rows=len(prompts))
    own = wide.model_copy(update={"spec": config.spec})
    with closing(make_lane(wide)) as lane:
        planner = planner_of(lane, own)
        drive(lane, own, ask(prompts, [temperature], max_tokens=8), concurrency=len(prompts), planner=planner)
        return {
            loop: _window(lane, own, planner, prompts, steps, temperature, overlap=overlap)
            for loop, overlap in loads.items()
        }


def _window(
    lane: Lane,
    config: Config,
    planner: Goodput | None,
    prompts: Prompts,
    steps: int,
    temperature: float,
    *,
    overlap: bool,
) -> list[StepTimes]:
    scheduler = config.scheduler.model_copy(update={"overlap": overlap})
    log = LaneLog(lane)
    most = min(8 * steps, lane.capacity.max_length - max(len(prompt) for prompt in prompts))
    requests = ask(prompts, [temperature], max_tokens=most)
    own = config.model_copy(update={"scheduler": scheduler})
    drive(log, own, requests, concurrency=len(prompts), planner=planner)
    if not all(times.began for times in log.steps):
        raise AerieError("the lane does not say when its steps began; a timeline needs StepOutput.began and ended")
    return _fullest(log.steps, steps)


def _fullest(steps: list[StepTimes], count: int) -> list[StepTimes]:
    """The earliest `count` consecutive steps in which most rows decode, after the first prompts."""
    rows = [step.rows if step.kind == StepKind.DECODE else 0 for step in steps]
    starts = range(min(_SETTLING, max(len(steps) - count, 0)), max(len(steps) - count, 0) + 1)
    first = max(starts, key=lambda start: sum(rows[start : start + count]))
    return steps[first : first + count]


def trace_cells(windows: dict[str, list[StepTimes]]) -> list[dict[str, Any]]:
    """Means over each window, in milliseconds."""
    return [_cell(loop, window) for loop, window in windows.items()]


def _cell(loop: str, window: Sequence[StepTimes]) -> dict[str, Any]:
    wall = window[-1].ended - window[0].began
    busy = sum(times.ended - times.began for times in window)
    return {
        "loop": loop,
        "steps": len(window),
        "rows": max(times.rows for times in window),
        "step_ms": 1e3 * wall / len(window),
        "lane_ms": 1e3 * busy / len(window),
        "host_ms": 1e3 * sum(times.launched - times.planning for times in window) / len(window),
        "wait_ms": 1e3 * sum(times.settled - times.waiting for times in window) / len(window),
        "idle_share": max(0.0, 1 - busy / wall),
        "tokens_per_s": sum(times.committed for times in window) / wall,
    }
