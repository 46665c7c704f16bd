"""Intervals at 95 % of acceptance lengths, from resampling prompts and seeds, and which differences are noise.

All heads answer the same prompts, so that in a difference both arms draw the same ones, and the seeds of each arm for
itself. Of n seeds n - 1 are drawn: the mean of these varies as much as that of n seeds does.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Cell = dict[str, Any]
Drawn = dict[str, Doubles]
"""By task, the acceptance length in each resample; by `all` that of all tasks, weighted equally."""

ALL = "all"
RESAMPLES = 1000
_T975 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t at 0.975 by the number of seeds."""


def resampled(counts: Mapping[str, Doubles], *, arm: int) -> Drawn:
    """`counts` [seeds, prompts, 2] of each task: steps of an answer, and the tokens that they committed. `arm` numbers
    the arm; equal arguments give equal draws.
    """
    found: Drawn = {}
    seeds = next(iter(counts.values())).shape[0]
    own = _weights(np.random.default_rng([1, arm]), seeds, max(1, seeds - 1))  # [resamples, seeds]
    for place, (task, counted) in enumerate(sorted(counts.items())):
        prompts = counted.shape[1]
        drawn = _weights(np.random.default_rng([0, place]), prompts, prompts)  # [resamples, prompts]
        steps, tokens = (drawn @ counted[:, :, part].T for part in (0, 1))  # [resamples, seeds] each
        found[task] = ((tokens / np.maximum(steps, 1)) * own).sum(1) / own.sum(1)
    found[ALL] = np.mean([found[task] for task in counts], axis=0)
    return found


def interval(values: Doubles) -> tuple[float, float]:
    lower, upper = np.quantile(values, [0.025, 0.975])
    return round(float(lower), 4), round(float(upper), 4)


def compare(row: Cell, other: Cell, drawn: Doubles, others: Doubles) -> None:
    """Adds to a row of means the arm that it stands `beside`, the difference with its interval, and whether that is
    within the noise: unless both the resamples and Welch's test over seeds, with the freedom of the smaller sample, say
    otherwise. It is None for a single seed.
    """
    difference = row["acceptance_length"] - other["acceptance_length"]
    lower, upper = interval(drawn - others)
    count = min(row["seeds"], other["seeds"])
    deviations = [one["acceptance_length_deviation"] for one in (row, other)]
    half = _T975[count] * math.hypot(*deviations) / count**0.5 if count in _T975 else None
    row |= {"beside": other["arm"], "difference": round(difference, 4)}
    row |= {"difference_lower": lower, "difference_upper": upper}
    row["within_noise"] = None if half is None else lower <= 0 <= upper or abs(difference) <= half


def add_intervals(rows: list[Cell], cells: list[Cell], beside: Mapping[str, str | None]) -> None:
    """Adds to each mean length its interval, and what `compare` adds. `cells` have `by_answer`, [steps, tokens] of each
    prompt; `beside` maps every arm to the one that it is compared with.
    """
    drawn: dict[tuple[Any, ...], Doubles] = {}
    known = {_key(row): row for row in rows if "acceptance_length" in row}
    for (arm, shape, temperature), same in itertools.groupby(sorted(cells, key=_setting), _setting):
        by_task: dict[str, list[Any]] = {}
        for cell in same:
            by_task.setdefault(cell["task"], []).append(cell["by_answer"])
        counts = {task: np.array(answers, dtype=np.float64) for task, answers in by_task.items()}
        for task, values in resampled(counts, arm=list(beside).index(arm)).items():
            drawn[arm, task, shape, temperature] = values
    for key, row in known.items():
        row["acceptance_length_lower"], row["acceptance_length_upper"] = interval(drawn[key])
        other = (beside[row["arm"]], *key[1:])
        if other in known:
            compare(row, known[other], drawn[key], drawn[other])


def _key(row: Cell) -> tuple[Any, ...]:
    return row["arm"], row["task"], row["shape"], row["temperature"]


def _setting(cell: Cell) -> tuple[str, str, float]:
    return cell["arm"], cell["shape"], cell["temperature"]


def _weights(rng: np.random.Generator, count: int, drawn: int) -> Doubles:
    """[resamples, count] how often each of `count` is drawn."""
    return rng.multinomial(drawn, [1 / count] * count, size=RESAMPLES).astype(np.float64)
