"""A whole step that drafts. The speculative worker calls it if no graph was recorded for the plan."""

from collections.abc import Callable

from aerie.contracts.step import StepPlan
from aerie.engine.sampling.masks import Masks
from aerie.engine.step.batch import stage_changes
from aerie.engine.step.clock import ReadTimes
from aerie.engine.step.masked import Sent, choose_then, ragged_places
from aerie.engine.step.results import send
from aerie.engine.step.skip_finished import rested
from aerie.spec.round.answer import full_answer
from aerie.spec.round.round import Round
from aerie.spec.round.stage import stage_round
from aerie.spec.round.verify import fetch_trees


def draft_step(
    phases: Round, plan: StepPlan, times: ReadTimes, sent: Sent, stage_catch_up: Callable[[], Callable[[], None]]
) -> None:
    """Answers before it extends the drafter, so that the scheduler need not wait for the extend. `stage_catch_up`
    stages what comes before the draft.
    """
    state = phases.state
    resting = rested(state, plan, times)
    if resting is not None:
        sent(resting)
        return
    with state.clock.phase("draft"):
        with state.transfer.together():
            change = stage_changes(plan, state.tables, state.transfer)
            staged = stage_round(state, plan, phases.drafter.needs)
            catch_up = stage_catch_up()
        change()
        catch_up()
        opened = phases.open(staged)
        drafted = phases.draft(opened)
        opened = phases.cut_short(opened, drafted)
        trees = fetch_trees(state, drafted.tree)
    with state.clock.phase("verify"):
        passed = phases.run(opened, drafted)

    def rest(sent: Sent, masks: Masks | None) -> None:
        with state.clock.phase("verify"):
            verified = phases.choose(opened, drafted, passed, masks)
        with state.clock.phase("accept"):
            outcome = phases.accept(opened, drafted, verified)
            pending = send(full_answer(plan, opened, drafted, verified, outcome), state.transfer, plan, times)
        sent(pending)
        with state.clock.phase("extend"):
            seeds = phases.extend(opened, verified, outcome)
            phases.publish(opened, outcome, seeds)

    choose_then(state, sent, rest, lambda: ragged_places(passed.layout), trees)
