"""What a resting row keeps, so that its drafter can catch up: the taps of its last tokens, and the token after each.

A row rests in steps that draft nothing: the target's pass alone runs, and the pair that would have extended the drafter
goes to the row's tail. Before the row drafts again, one pass extends the drafter with the whole tail, and leaves the
same KV and the same draft seed as if it had been extended with every step.

The host counts the pairs of a tail by the steps that it planned. A row whose mask was late in one of them has a pair
less, which the host learns later; so the device knows by itself where each tail begins.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.step import Bools, StepPlan
from aerie.engine.state.transfer import Transfer
from aerie.engine.step.batch import attention_inputs, cover, layout
from aerie.engine.step.passes import PassResult
from aerie.engine.step.plain_step import Extend
from aerie.engine.step.state import DeviceState
from aerie.spec.drafters.drafter import Drafter, Pairs


class Tails:
    """`size` pairs of each row; the pair of position j lies at j modulo size. Index `rows` is the dummy row, which
    takes what nobody keeps.
    """

    def __init__(
        self, rows: int, size: int, width: int, *, stored: torch.dtype, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Taps of `width` numbers come in `dtype`; `stored` holds them exactly."""
        self.size = size
        self.taps = torch.zeros(rows + 1, size, width, dtype=stored, device=device)
        self.tokens = torch.zeros(rows + 1, size, dtype=torch.int64, device=device)
        self.firsts = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        """[rows + 1] the position at which each row's tail begins."""
        self._dummy_row = rows
        self._dtype = dtype

    @property
    def bytes(self) -> int:
        return sum(table.numel() * table.element_size() for table in (self.taps, self.tokens, self.firsts))

    def stage_keep(self, plan: StepPlan | None, rows: int, transfer: Transfer) -> Extend:
        """Stages which of a plain step's rows rest, padded to `rows`; without a plan none does. The returned function
        takes in their pairs, and hands on the draft seeds that they had.
        """

        def padded(values: Bools | None) -> Tensor:
            whole = np.zeros(rows, dtype=np.bool_)
            if values is not None:
                whole[: values.size] = values
            return transfer.put(whole, np.bool_)

        resting = padded(None if plan is None else plan.resting)
        fresh = padded(None if plan is None else plan.fresh)

        def keep(result: PassResult) -> Tensor | None:
            self.begin(result.rows, result.positions, fresh)
            self._take(result, resting)
            return result.seeds

        return keep

    def begin(self, rows: Tensor, positions: Tensor, fresh: Tensor) -> None:
        """Empties the tails of those rows [n] that are `fresh` [n]: they begin at positions [n]."""
        self.firsts.index_copy_(0, torch.where(fresh, rows, self._dummy_row), positions)

    def _take(self, result: PassResult, resting: Tensor) -> None:
        """Takes in the pairs of those rows [n] that rest; a row that committed nothing has none."""
        assert result.taps is not None
        kept = resting & (result.committed.counts > 0)
        rows = torch.where(kept, result.rows, self._dummy_row)
        places = rows * self.size + result.positions.remainder(self.size)  # [n]
        self.taps.flatten(0, 1).index_copy_(0, places, result.taps.to(self.taps.dtype))
        self.tokens.view(-1).index_copy_(0, places, result.tokens)

    def stage_catch_up(self, state: DeviceState, drafter: Drafter, plan: StepPlan) -> Callable[[], None]:
        """Stages the rows whose tails the plan names. The returned function extends the drafter with those tails, and
        stores the draft seeds that the step reads. Call it once the step's pages are in the tables.
        """
        assert plan.behind is not None and plan.decode is not None
        late = np.flatnonzero(plan.behind)
        if not late.size:
            return lambda: None
        put, tables, futures = state.transfer.put, state.tables, state.futures
        rows, generations = put(plan.rows[late]), put(plan.generations[late])  # [r] each
        own = layout(plan.behind[late], state.transfer)
        covered = cover(plan.decode.bounds[late], tables.page_size, state.transfer)

        def catch_up() -> None:
            lengths, done = futures.lengths[generations, rows], futures.done[generations, rows]
            firsts = torch.where(done, 0, self.firsts[rows])
            counts = torch.where(done, 0, lengths - firsts)  # [r], as all above; the tail of an ended row lacks a pair
            kept = own.places < counts[own.owners]  # [T]; the surplus of a row comes last
            owners = rows[own.owners]  # [T], as positions
            positions = torch.minimum(firsts[own.owners] + own.places, lengths[own.owners])
            places = owners * self.size + positions.remainder(self.size)
            pairs = Pairs(
                tokens=self.tokens.view(-1).index_select(0, places),
                taps=self.taps.flatten(0, 1).index_select(0, places).to(self._dtype),
                positions=positions,
                slots=tables.slots(torch.where(kept, owners, tables.dummy_row), positions),
                inputs=attention_inputs(tables, rows, firsts, covered, own.indptr),
                lasts=own.firsts + (counts - 1).clamp(min=0),
            )
            seeds = drafter.extend(pairs).to(futures.seeds.dtype)
            known = futures.seeds[generations, rows]  # of a row whose tail is empty
            futures.seeds[generations, rows] = torch.where((counts > 0)[:, None], seeds, known)

        return catch_up
