"""A decode step whose rows have all ended before it: where the device is the host, its passes are left out.

An overlapped loop launches a step before it knows which rows the one before ended. A GPU computes such a step for the
dummy page, for nobody could look without waiting; on the host looking is free, and whoever comes next need not wait.
Called first by both workers.
"""

import torch

from contracts.step import Ending, StepPlan
from engine.batch import stage_changes
from engine.clock import ReadTimes
from engine.results import Answer, Pending, send
from engine.state import DeviceState


def rested(state: DeviceState, plan: StepPlan, times: ReadTimes) -> Pending | None:
    """The answer of a step that commits nothing, or None where there is work to do, as far as one can see."""
    if plan.decode is None or not state.visible or not state.futures.done.numpy()[plan.turns, plan.rows].all():
        return None
    rows, turns = state.transfer.put(plan.rows), state.transfer.put(plan.turns)
    stage_changes(plan, state.tables, state.transfer)()
    tokens, lengths, done, seeds = state.futures.read(turns, rows)
    state.futures.publish(1 - turns, rows, bonus=tokens, lengths=lengths, done=done, seeds=seeds)
    nothing = torch.zeros_like(lengths)
    endings = torch.full_like(lengths, int(Ending.OPEN))
    answer = Answer(tokens=nothing[:, None], counts=nothing, lengths=lengths, endings=endings)
    return send(answer, state.transfer, plan, times)
