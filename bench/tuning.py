"""Tuning of targets with `vary`: each setting is tried alone before the sweep's own cells, and each load keeps its
fastest.

Trials are saved with the same figures as cells, so that a report can show them and a killed sweep resumes where it was.
They cover the sweep's loads on its first workload. More `threads` than the machine has cores are not tried: they wait
for each other, so that a trial would take minutes and never win.
"""

from typing import Any

from aerie.bench.cells import Cell, Trial
from aerie.bench.config import Setting, Sweep, Target
from aerie.bench.machine import allowed_cores

Choices = dict[tuple[str, str, float], Setting]
"""By target, mode and load."""


def trials(sweep: Sweep) -> list[Trial]:
    """Trials in running order: all loads of a setting together, so that its server starts once."""
    return [
        Trial(Cell(target.name, sweep.workloads[0], *load, repeat=0), setting)
        for target in sweep.targets
        if target.vary
        for setting in _tried(target)
        for load in sweep.loads
    ]


def _tried(target: Target) -> list[Setting]:
    cores, settings = allowed_cores(), target.settings()
    return [setting for setting in settings if int(dict(setting).get("threads", 1)) <= cores] or settings[:1]


def shortened(sweep: Sweep) -> Sweep:
    """The sweep with the size of trials."""
    return sweep.model_copy(update=dict(sweep.tuning))


def chosen(sweep: Sweep, tried: list[dict[str, Any]]) -> Choices:
    """The setting with the most tokens per second; the first one if no trial succeeded."""
    choices: Choices = {(target.name, *load): target.settings()[0] for target in sweep.targets for load in sweep.loads}
    most: dict[tuple[str, str, float], float] = {}
    for line in tried:
        key = (line["target"], line["mode"], line["load"])
        if line["status"] == "ok" and line["output_tokens_per_s"] > most.get(key, 0.0):
            most[key] = line["output_tokens_per_s"]
            choices[key] = tuple(line["setting"].items())
    return choices
