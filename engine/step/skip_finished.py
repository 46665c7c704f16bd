"""Skips the passes of a decode step whose rows have all finished, if the device is the host.

An overlapped loop launches a step before it knows which rows the previous step finished. A GPU runs such a step on the
dummy page, since checking would need a host sync. On the host the check is free, and the next request need not wait.
Both workers call this first.
"""

import torch

from aerie.contracts.step import Ending, StepPlan
from aerie.engine.step.batch import stage_changes
from aerie.engine.step.clock import ReadTimes
from aerie.engine.step.results import Answer, Pending, send
from aerie.engine.step.state import DeviceState


def rested(state: DeviceState, plan: StepPlan, times: ReadTimes) -> Pending | None:
    """The answer of a step that commits nothing; None if there may be work to do."""
    if plan.decode is None or not state.visible or not state.futures.done.numpy()[plan.generations, plan.rows].all():
        return None
    rows, generations = state.transfer.put(plan.rows), state.transfer.put(plan.generations)
    stage_changes(plan, state.tables, state.transfer)()
    tokens, lengths, done, seeds = state.futures.read(generations, rows)
    state.futures.publish(1 - generations, rows, bonus=tokens, lengths=lengths, done=done, seeds=seeds)
    nothing = torch.zeros_like(lengths)  # [rows], as endings
    endings = torch.full_like(lengths, int(Ending.OPEN))
    answer = Answer(tokens=nothing[:, None], counts=nothing, lengths=lengths, endings=endings)
    return send(answer, state.transfer, plan, times)
