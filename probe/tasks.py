"""`aerie probe tasks`: acceptance in answers to tasks, by task, shape, temperature and position in the answer."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from statistics import fmean
from typing import Any

from aerie.contracts.config import Config
from aerie.contracts.shape import DraftShape
from aerie.probe.acceptance import CONCURRENCY, accepted
from aerie.probe.drive import Answer, MakeLane, Prompts, Run, joined
from aerie.probe.paired import interval_of_sums
from aerie.probe.shapes import for_lane, label

PLACES = ((0, 8), (8, 32), (32, 64), (64, 128), (128, 200), (200, None))
"""Positions in an answer where a step began: half-open windows of output tokens."""
ALL = "all"
"""The task of a cell that weights every task equally."""


def measure_tasks(
    config: Config,
    prompts: Mapping[str, Prompts],
    make_lane: MakeLane,
    *,
    shapes: Sequence[DraftShape],
    temperatures: Sequence[float] = (0.0, 0.8, 1.0),
    max_tokens: int = 400,
) -> list[dict[str, Any]]:
    """One cell for each shape, temperature and task, and one for all tasks; `prompts` are ids, by task."""
    wide = for_lane(config, shapes, rows=CONCURRENCY)
    cells: list[dict[str, Any]] = []
    with closing(make_lane(wide)) as lane:
        for shape in shapes:
            for temperature in temperatures:
                runs = {
                    task: accepted(lane, wide, shape, asked, temperature, max_tokens) for task, asked in prompts.items()
                }
                cells += [_cell(task, shape, temperature, run) for task, run in runs.items()]
                cells.append(_all(shape, temperature, list(runs.values())))
    return cells


def by_place(answers: Sequence[Answer]) -> dict[str, float | None]:
    """Mean tokens committed per step, by where in the answer it began; None if none did. Ends truncate steps."""
    counted = counts_by_place(answers)
    return {place: tokens / steps if steps else None for place, (steps, tokens) in counted.items()}


def counts_by_place(answers: Sequence[Answer]) -> dict[str, tuple[int, int]]:
    """(steps, tokens that they committed), by where in the answer a step began."""
    found: dict[str, tuple[int, int]] = {}
    for first, last in PLACES:
        sizes = [size for answer in answers for place, size in _steps(answer) if first <= place < (last or place + 1)]
        found[f"{first}-{last or ''}"] = len(sizes), sum(sizes)
    return found


def _steps(answer: Answer) -> list[tuple[int, int]]:
    """(position in the answer, tokens) of each decode step; the first reply is the prompt's."""
    place, found = 0, []
    for index, size in enumerate(answer.replies):
        if index:
            found.append((place, size))
        place += size
    return found


def _cell(task: str, shape: DraftShape, temperature: float, run: Run) -> dict[str, Any]:
    return {
        "task": task,
        "shape": label(shape),
        "temperature": temperature,
        "answers": len(run.answers),
        "tokens": sum(map(len, run.tokens)) / len(run.answers),
        "accepted": run.acceptance_length,
        "accepted_interval": list(interval_of_sums((run.decoded, run.steps))),
        **by_place(run.answers),
    }


def _all(shape: DraftShape, temperature: float, runs: list[Run]) -> dict[str, Any]:
    """The mean over tasks; positions over all answers."""
    whole = _cell(ALL, shape, temperature, joined(runs))
    interval = interval_of_sums(*((run.decoded, run.steps) for run in runs))
    return {**whole, "accepted": fmean(run.acceptance_length for run in runs), "accepted_interval": list(interval)}
