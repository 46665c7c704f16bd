"""A whole step that drafts: draft, verify, accept, answer, extend. The speculative worker calls it if no graph was
recorded for the plan.
"""

from collections.abc import Callable
from dataclasses import replace

from aerie.contracts.spec_section import SpecConfig
from aerie.contracts.step import StepPlan
from aerie.engine.step.batch import stage_changes
from aerie.engine.step.clock import ReadTimes
from aerie.engine.step.results import Pending, send
from aerie.engine.step.skip_finished import rested
from aerie.engine.step.state import DeviceState
from aerie.spec.heads.head import Head
from aerie.spec.round.round import commit, drafted_answer, follow, open_round, propose, publish_round
from aerie.spec.round.stage import cut_short, stage_round
from aerie.spec.round.verify import verify

Sent = Callable[[Pending], None]
"""Takes a step's answer as soon as the answer is on its way."""


def draft_step(state: DeviceState, head: Head, spec: SpecConfig, plan: StepPlan, times: ReadTimes, sent: Sent) -> None:
    """Answers before it extends the head, so that the scheduler need not wait for the extend."""
    resting = rested(state, plan, times)
    if resting is not None:
        sent(resting)
        return
    phase = state.clock.phase
    with phase("draft"):
        with state.transfer.together():
            change = stage_changes(plan, state.tables, state.transfer)
            staged = stage_round(state, plan, head.config)
        change()
        opening = open_round(state, staged)
        tree, noise = propose(state, head, opening, spec)
        staged = cut_short(state, staged, tree.tokens.shape[1])
        opening = replace(opening, staged=staged)
    with phase("verify"):
        verified = verify(state, opening.roots, tree, staged.nodes, staged.needs, noise=noise, taps=True)
    with phase("accept"):
        outcome = commit(state, opening, tree, verified, plan.logprobs, simulated=spec.simulate_acceptance)
        answer = drafted_answer(opening, outcome, tree if plan.trees else None)
        pending = send(answer, state.transfer, plan, times)
    sent(pending)
    with phase("extend"):
        publish_round(state, opening, outcome, follow(state, head, opening, verified, outcome))
