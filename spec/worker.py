"""The speculative worker: one round of draft, verify, accept and extend for a batch.

Implements contracts.worker.Worker on the plain worker's tables, passes and choice, so a row commits the same tokens on
either. It runs each step as one of three kinds, `draft_step`, `extend_step` or `plain_step`, or as a recorded graph. If
no row extends the drafter, the step *is* the plain worker's.
"""

from collections.abc import Callable

import torch

from aerie.contracts.step import Capacity, StepPlan
from aerie.contracts.worker import Answering
from aerie.engine.cuda import Runtime
from aerie.engine.grammars.guides import Guides
from aerie.engine.sampling.masks import Masks
from aerie.engine.step.batch import stage_changes
from aerie.engine.step.clock import ReadTimes
from aerie.engine.step.masked import Sent, choose_then
from aerie.engine.step.plain_graphs import PlainGraphs
from aerie.engine.step.plain_step import plain_step
from aerie.engine.step.results import Pending, send
from aerie.spec.drafters.drafter import Drafter
from aerie.spec.round.extend_step import extend_step
from aerie.spec.round.graphs import RoundGraphs
from aerie.spec.round.round import Round
from aerie.spec.round.step import draft_step
from aerie.spec.round.tails import Tails


class SpecWorker:
    """A target and its drafter.

    Rows that a plan marks as drafting extend the drafter; the others cost what plain ones do.
    """

    def __init__(
        self,
        phases: Round,
        *,
        rounds: RoundGraphs | None = None,
        plain: PlainGraphs | None = None,
        tails: Tails | None = None,
    ) -> None:
        """`tails` of the rows that may rest, if there are any. Steps that neither `rounds` nor `plain` has recorded are
        launched kernel by kernel.
        """
        self.state = phases.state
        self.drafter: Drafter = phases.drafter
        self.spec = phases.spec
        self.tails = tails
        self._phases = phases
        self._rounds = rounds
        self._plain_graphs = plain

    @property
    def capacity(self) -> Capacity:
        return self.state.capacity

    @property
    def guides(self) -> Guides | None:
        return self.state.guides

    @property
    def runtime(self) -> Runtime | None:
        """The GPU's runtime; None on a CPU."""
        return self.state.runtime

    def step(self, plan: StepPlan, answer: Answering) -> None:
        """Runs a step. Answers before it extends the drafter."""
        self.state.needs.note(plan)
        self.run(plan, answer)

    def run(self, plan: StepPlan, answer: Answering) -> None:
        """`step` for a plan whose rows' needs have been noted."""

        def sent(pending: Pending) -> None:
            output = pending.output()
            self.state.answer(lambda: output, lambda read: answer(read()))

        self._launch(plan, sent)

    def launch(self, plan: StepPlan) -> Pending:
        """Launches a step's work without a host sync on an asynchronous device."""
        self.state.needs.note(plan)
        sent: list[Pending] = []
        self._launch(plan, sent.append)
        return sent[0]

    @torch.inference_mode()
    def _launch(self, plan: StepPlan, sent: Sent) -> None:
        self.state.begin(plan)
        self.state.transfer.begin()
        times = self.state.clock.start()
        if drafts(plan):
            self._round(plan, times, sent)
        else:
            self._plain(plan, times, sent)
        self.state.clock.stop()

    def stage_catch_up(self, plan: StepPlan) -> Callable[[], None]:
        """The returned function extends the drafter with the tails of rows that rested and now draft."""
        if plan.behind is None or self.tails is None:
            return lambda: None
        run = self.tails.stage_catch_up(self.state, self.drafter, plan)

        def catch_up() -> None:
            with self.state.clock.phase("catch_up"):
                run()

        return catch_up

    def close(self) -> None:
        self.state.close()

    def _round(self, plan: StepPlan, times: ReadTimes, sent: Sent) -> None:
        bucket = None if self._rounds is None else self._rounds.bucket(plan)
        if self._rounds is None or bucket is None:
            draft_step(self._phases, plan, times, sent, lambda: self.stage_catch_up(plan))
            return
        state, rounds, phase = self.state, self._rounds, self.state.clock.phase
        with phase("draft"):
            with state.transfer.together():
                renew = rounds.stage(bucket, plan)
                change = stage_changes(plan, state.tables, state.transfer)
                catch_up = self.stage_catch_up(plan)
            change()
            catch_up()
            renew()
            trees = rounds.draft(bucket)
        with phase("verify"):
            words = rounds.run(bucket)

        def rest(sent: Sent, masks: Masks | None) -> None:
            chosen = words
            if masks is not None:  # at the addresses that the recording reads
                with phase("verify"):
                    chosen = rounds.choose(bucket)
            sent(send(rounds.answer(bucket), state.transfer, plan, times, chosen))
            with phase("extend"):
                rounds.extend(bucket)

        choose_then(state, sent, rest, lambda: rounds.places(bucket, plan), trees)

    def _plain(self, plan: StepPlan, times: ReadTimes, sent: Sent) -> None:
        bucket = None if self._plain_graphs is None else self._plain_graphs.bucket(plan)
        tails, transfer = self.tails, self.state.transfer
        if self._plain_graphs is not None and bucket is not None:
            self._plain_graphs.launch(bucket, plan, times, sent)
        elif plan.resting is not None and tails is not None:
            count = plan.rows.size
            plain_step(self.state, plan, times, sent, lambda: tails.stage_keep(plan, count, transfer), taps=True)
        elif any(plan.drafting):
            extend_step(self.state, self.drafter, plan, times, sent)
        else:
            plain_step(self.state, plan, times, sent)


def drafts(plan: StepPlan) -> bool:
    """Whether any row of the step drafts."""
    work = plan.decode
    if work is None or work.depth == 0:
        return False
    rows = zip(plan.drafting, work.nodes, strict=True)
    return any(drafting and nodes > 1 for drafting, nodes in rows)
