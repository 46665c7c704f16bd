"""The answer of a round, as the scheduler gets it."""

from dataclasses import replace

import torch

from aerie.contracts.step import StepPlan
from aerie.engine.sampling.choose import token_logprobs
from aerie.engine.step.passes import Ranked
from aerie.engine.step.results import Answer
from aerie.spec.round.round import Drafted, Opened, Outcome, path_nodes
from aerie.spec.round.verify import Verified


def drafted_answer(opened: Opened, outcome: Outcome) -> Answer:
    """What was drafted, accepted and committed."""
    nothing = opened.done if outcome.late is None else opened.done | outcome.late
    return Answer(
        tokens=outcome.accepted.tokens,
        counts=outcome.committed.counts,
        lengths=outcome.lengths,
        endings=outcome.committed.endings,
        accepted=outcome.accepted.counts,
        drafted=torch.where(nothing, 0, opened.staged.counts - 1),
    )


def full_answer(plan: StepPlan, opened: Opened, drafted: Drafted, verified: Verified, outcome: Outcome) -> Answer:
    """The same, with the log probabilities and the trees that the plan asks for."""
    answer = drafted_answer(opened, outcome)
    if plan.logprobs >= 0:
        answer = replace(answer, ranked=_path_logprobs(opened, verified, outcome, plan.logprobs))
    if plan.trees:
        answer = replace(answer, trees=(drafted.tree.tokens, drafted.tree.parent_nodes))
    return answer


def _path_logprobs(opened: Opened, verified: Verified, outcome: Outcome, count: int) -> Ranked:
    """Along each row's path: [R, W] of the tokens, ids and log probabilities [R, W, count] of the likeliest."""
    flat = path_nodes(opened, verified, outcome)  # [R, W]
    logits = verified.passed.logits.index_select(0, flat.flatten())  # [R * W, V]
    own, ids, values = token_logprobs(logits, outcome.accepted.tokens.flatten(), count)
    return own.view(flat.shape), ids.view(*flat.shape, count), values.view(*flat.shape, count)
