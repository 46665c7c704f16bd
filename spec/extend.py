"""Committed tokens into the head: pair j = (tap a_j, token x_(j+1)) into its KV, and the pre-norm output of the last
pair as draft seed.

Called after every pass that commits tokens or fills a prompt, also when nothing was drafted: a head that skipped tokens
would draft from a hole. Surplus pairs past the committed ones land beyond the row's length, where the next round writes
again.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from contracts.step import Bools, Ints, PrefillWork, StepPlan
from engine.attention.inputs import AttentionInputs
from engine.batch import Layout, attention_inputs, layout, on_device
from engine.passes import PassResult
from engine.row_tables import RowTables
from spec.head import Head


@dataclass(frozen=True, slots=True)
class Followed:
    """The rows of a step that the head follows, where it follows some but not all."""

    host: Ints
    """[f] indices into the step's rows."""
    device: Tensor
    """The same, int64."""

    def spread(self, values: Tensor, rows: int) -> Tensor:
        """[f, ...] -> [rows, ...], zero in the other rows."""
        return values.new_zeros(rows, *values.shape[1:]).index_copy_(0, self.device, values)


def followed(drafting: Bools, device: torch.device) -> Followed | None:
    """None where the head follows every row, the usual step."""
    if drafting.all():
        return None
    host = np.flatnonzero(drafting)
    return Followed(host.astype(np.int32), torch.from_numpy(host).to(device))


@dataclass(frozen=True, slots=True)
class Pairs:
    """What the head is given: T pairs, row by row, and where they stand."""

    tokens: Tensor
    taps: Tensor
    positions: Tensor
    slots: Tensor
    inputs: AttentionInputs


def extend(head: Head, pairs: Pairs) -> Tensor:
    """-> pre-norm outputs [T, H]; the pairs' KV is written."""
    planned = head.attention.plan(pairs.inputs)
    return head.forward(pairs.tokens, head.fuse(pairs.taps), head.turns(pairs.positions), pairs.slots, planned)


def extend_pass(head: Head, tables: RowTables, plan: StepPlan, result: PassResult) -> Tensor:
    """The pairs of a prefill chunk or of a plain decode -> seeds [rows, H], zero in rows that the head does not
    follow.
    """
    assert result.taps is not None
    device, lay = result.tokens.device, result.layout
    successors = result.tokens if plan.prefill is None else _successors(plan.prefill, result)
    pairs = Pairs(successors, result.taps, result.positions, result.slots, result.inputs)
    picked = followed(plan.drafting, device)
    if picked is None:
        return extend(head, pairs).index_select(0, _lasts(lay))
    part = layout(lay.counts[picked.host], device)
    firsts = lay.indptr[:-1].to(device).index_select(0, picked.device)
    flat = firsts[part.owners] + part.places
    covered = result.covered[picked.host]
    prefix = result.inputs.prefix_lens.index_select(0, picked.device)
    inputs = attention_inputs(tables, result.rows.index_select(0, picked.device), prefix, covered, part.indptr)
    outputs = extend(
        head, Pairs(successors[flat], result.taps[flat], result.positions[flat], result.slots[flat], inputs)
    )
    return picked.spread(outputs.index_select(0, _lasts(part)), plan.rows.size)


def _lasts(lay: Layout) -> Tensor:
    return (lay.indptr[1:] - 1).long().to(lay.places.device)


def _successors(work: PrefillWork, result: PassResult) -> Tensor:
    """The token after each of a chunk's: the next of the prompt, and the sampled one where the prompt ends."""
    ends = np.cumsum(result.layout.counts) - 1
    known = np.roll(work.token_ids, -1)
    known[ends] = work.next_ids
    tokens = on_device(known, result.tokens.device)
    last = _lasts(result.layout)
    sampled = torch.from_numpy(work.is_last).to(tokens.device)
    return tokens.index_copy_(0, last, torch.where(sampled, result.tokens, tokens.index_select(0, last)))
