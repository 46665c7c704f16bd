"""What a resting row keeps, so that its drafter can catch up: the taps of its last tokens, and the token after each.

A row rests in steps that draft nothing: the target's pass alone runs, and the pair that would have extended the drafter
goes to the row's tail. Before the row drafts again, one pass extends the drafter with the whole tail, and leaves the
same KV and the same draft seed as if it had been extended with every step. Only for devices whose host may look.
"""

import numpy as np
import torch

from aerie.contracts.step import Bools, StepPlan
from aerie.engine.step.batch import attention_inputs, cover, layout, stage_changes
from aerie.engine.step.clock import ReadTimes
from aerie.engine.step.passes import PassResult, choose_next, decode, publish, stage_decode
from aerie.engine.step.results import Pending, plain_answer, send
from aerie.engine.step.skip_finished import rested
from aerie.engine.step.state import DeviceState
from aerie.spec.drafters.drafter import Drafter, Pairs


class Tails:
    """`size` pairs of each of `rows` rows; the pair of position j lies at j modulo size. Taps are exact in float32."""

    def __init__(self, rows: int, size: int, width: int, dtype: torch.dtype) -> None:
        self.size = size
        self.taps = torch.zeros(rows + 1, size, width)
        self.tokens = torch.zeros(rows + 1, size, dtype=torch.int64)
        self._dtype = dtype

    @property
    def bytes(self) -> int:
        return sum(table.numel() * table.element_size() for table in (self.taps, self.tokens))

    def keep(self, resting: Bools, result: PassResult) -> None:
        """Takes in the pairs of a plain pass for the rows [R] that rest."""
        assert result.taps is not None
        chosen = torch.from_numpy(resting)
        rows, places = result.rows[chosen], result.positions[chosen].remainder(self.size)  # [resting rows] each
        self.taps[rows, places] = result.taps[chosen].float()
        self.tokens[rows, places] = result.tokens[chosen]

    def catch_up(self, state: DeviceState, drafter: Drafter, plan: StepPlan) -> None:
        """Extends the drafter with the tails that the plan names, and stores the draft seeds that its step reads."""
        assert plan.behind is not None and plan.decode is not None
        open_rows = ~state.futures.done.numpy()[plan.generations, plan.rows]  # the tail of an ended row lacks a pair
        late = np.flatnonzero((plan.behind > 0) & open_rows)
        if not len(late):
            return
        put, counts = state.transfer.put, plan.behind[late]
        rows, generations, behind = put(plan.rows[late]), put(plan.generations[late]), put(counts)  # [late] each
        own = layout(counts, state.transfer)
        firsts = state.futures.lengths[generations, rows] - behind  # [late]
        positions, owners = firsts[own.owners] + own.places, rows[own.owners]  # [T] each, as places
        places = positions.remainder(self.size)
        covered = cover(plan.decode.bounds[late], state.tables.page_size, state.transfer)
        pairs = Pairs(
            tokens=self.tokens[owners, places],
            taps=self.taps[owners, places].to(self._dtype),
            positions=positions,
            slots=state.tables.slots(owners, positions),
            inputs=attention_inputs(state.tables, rows, firsts, covered, own.indptr),
            lasts=own.lasts,
        )
        seeds = drafter.extend(pairs)
        state.futures.seeds[generations, rows] = seeds.to(state.futures.seeds.dtype)


def rest_step(state: DeviceState, tails: Tails, plan: StepPlan, times: ReadTimes) -> Pending:
    """A plain step that keeps the pairs of the rows that rest."""
    nothing = rested(state, plan, times)
    if nothing is not None:
        return nothing
    assert plan.resting is not None
    with state.clock.phase("verify"):
        with state.transfer.together():
            change = stage_changes(plan, state.tables, state.transfer)
            staged = stage_decode(state, plan)
        change()
        result = choose_next(state, decode(state, staged, taps=True), state.needs.of(plan.rows), logprobs=plan.logprobs)
        tails.keep(plan.resting, result)
        publish(state, staged, result)
        return send(plain_answer(result), state.transfer, plan, times)
