"""Settings of targets that vary: each is tried alone before the sweep's own cells, and each load keeps its fastest.

Trials are kept with the same figures as cells, so that a report can show what was tried and a killed sweep goes on
where it was. Tried are the loads of the sweep on its first workload.
"""

from typing import Any

from bench.cells import Cell, Trial
from bench.config import Setting, Sweep

Choices = dict[tuple[str, str, float], Setting]
"""By target, mode and load."""


def trials(sweep: Sweep) -> list[Trial]:
    """In the order in which they are run: all loads of a setting, so that its server starts once."""
    return [
        Trial(Cell(target.name, sweep.workloads[0], *load, repeat=0), setting)
        for target in sweep.targets
        if target.vary
        for setting in target.settings()
        for load in sweep.loads
    ]


def shortened(sweep: Sweep) -> Sweep:
    """The sweep as trials are measured."""
    return sweep.model_copy(update={"requests": sweep.tuning.requests, "rounds": sweep.tuning.rounds})


def chosen(sweep: Sweep, tried: list[dict[str, Any]]) -> Choices:
    """The setting with the most tokens a second; where no trial succeeded, the first one."""
    choices: Choices = {(target.name, *load): target.settings()[0] for target in sweep.targets for load in sweep.loads}
    most: dict[tuple[str, str, float], float] = {}
    for line in tried:
        key = (line["target"], line["mode"], line["load"])
        if line["status"] == "ok" and line["output_tokens_per_s"] > most.get(key, 0.0):
            most[key] = line["output_tokens_per_s"]
            choices[key] = tuple(line["setting"].items())
    return choices
