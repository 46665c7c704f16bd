"""Device tensors to the contract's arrays: the one place of a step where values come back to the host."""

import numpy as np
import torch
from torch import Tensor

from contracts.step import Ints, Logprobs, StepOutput, StepPlan
from engine.passes import PassResult, Ranked


def host(values: Tensor) -> Ints:
    return values.to(device="cpu", dtype=torch.int32).numpy()


def host_logprobs(ranked: Ranked) -> Logprobs:
    """[rows, committed] and [rows, committed, count] tensors."""
    chosen, ids, values = ranked
    return Logprobs(chosen.float().cpu().numpy(), host(ids), values.float().cpu().numpy())


def plain_output(plan: StepPlan, result: PassResult) -> StepOutput:
    """The output of a pass that drafted nothing."""
    nothing = np.zeros(plan.rows.size, dtype=np.int32)
    ranked = result.ranked
    return StepOutput(
        number=plan.number,
        token_ids=host(result.tokens[:, None]),
        counts=host(result.committed.counts),
        accepted=nothing,
        drafted=nothing,
        lengths=host(result.lengths),
        endings=host(result.committed.endings),
        logprobs=None
        if ranked is None
        else host_logprobs((ranked[0][:, None], ranked[1][:, None], ranked[2][:, None])),
    )
