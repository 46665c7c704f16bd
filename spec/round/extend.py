"""Extends the head with committed tokens: writes pair j = (tap a_j, token x_(j+1)) into its KV, and takes the pre-norm
output of the last pair as draft seed.

Called after every pass that commits tokens or computes a prompt, also when nothing was drafted: a head that skipped
tokens would draft from a hole in its KV. Surplus pairs past the committed ones land beyond the row's length, where the
next round overwrites them.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.step import Bools, Ints, PrefillWork, StepPlan
from aerie.engine.attention import planned_for
from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.state.row_tables import RowTables
from aerie.engine.state.transfer import Transfer
from aerie.engine.step.batch import Cover, Layout, attention_inputs, cover, layout
from aerie.engine.step.passes import PassResult
from aerie.spec.heads.head import Head


@dataclass(frozen=True, slots=True)
class Followed:
    """The rows of a step that extend the head, if only some do."""

    host: Ints
    """[f] indices into the step's rows."""
    device: Tensor
    """The same indices on the device, int64."""

    def spread(self, values: Tensor, rows: int) -> Tensor:
        """[f, ...] -> [rows, ...], zero in the other rows."""
        return values.new_zeros(rows, *values.shape[1:]).index_copy_(0, self.device, values)


def followed(drafting: Bools, transfer: Transfer) -> Followed | None:
    """None if every row extends the head, the usual step."""
    if drafting.all():
        return None
    host = np.flatnonzero(drafting)
    return Followed(host.astype(np.int32), transfer.put(host))


@dataclass(frozen=True, slots=True)
class Pairs:
    """The head's input: T pairs, row by row, with positions and slots."""

    tokens: Tensor
    taps: Tensor
    positions: Tensor
    slots: Tensor
    inputs: AttentionInputs


def extend(head: Head, pairs: Pairs) -> Tensor:
    """Writes the pairs' KV -> pre-norm outputs [T, H]."""
    planned = planned_for(head.attention, pairs.inputs)
    return head.forward(pairs.tokens, head.fuse(pairs.taps), head.turns(pairs.positions), pairs.slots, planned)


@dataclass(frozen=True, slots=True)
class Following:
    """How a pass that drafted nothing extends the head, as staged."""

    picked: Followed | None
    part: Layout | None
    """Layout of the picked rows alone; None if `picked` is None: then the pass's layout applies."""
    cover: Cover | None
    successors: Tensor | None
    """[tokens] the token after each token of a prefill, unknown after a prompt's last; None in a decode step."""
    sampled: Tensor | None
    """[rows] bool: prompts that end here."""


def stage_following(plan: StepPlan, page_size: int, transfer: Transfer) -> Following:
    picked = followed(plan.drafting, transfer)
    if plan.prefill is not None:
        counts, covered = plan.prefill.counts, plan.prefill.starts + plan.prefill.counts
    else:
        assert plan.decode is not None
        counts, covered = np.ones(plan.rows.size, dtype=np.int32), plan.decode.bounds + 1
    return Following(
        picked=picked,
        part=None if picked is None else layout(counts[picked.host], transfer),
        cover=None
        if picked is None
        else cover(covered[picked.host], page_size, transfer, exact=plan.prefill is not None),
        successors=None if plan.prefill is None else transfer.put(_successors(plan.prefill)),
        sampled=None if plan.prefill is None else transfer.put(plan.prefill.is_last, np.bool_),
    )


def extend_pass(head: Head, tables: RowTables, result: PassResult, following: Following) -> Tensor:
    """Extends the head with a prefill chunk or a plain decode step -> seeds [rows, H], zero in rows that do not extend
    it.
    """
    assert result.taps is not None
    lay, successors = result.layout, result.tokens
    if following.successors is not None and following.sampled is not None:
        known = following.successors
        chosen = torch.where(following.sampled, result.tokens, known.index_select(0, lay.lasts))
        successors = known.index_copy(0, lay.lasts, chosen)
    pairs = Pairs(successors, result.taps, result.positions, result.slots, result.inputs)
    picked, part = following.picked, following.part
    if picked is None or part is None or following.cover is None:
        return extend(head, pairs).index_select(0, lay.lasts)
    flat = lay.firsts.index_select(0, picked.device)[part.owners] + part.places
    prefix = result.inputs.prefix_lens.index_select(0, picked.device)
    inputs = attention_inputs(tables, result.rows.index_select(0, picked.device), prefix, following.cover, part.indptr)
    outputs = extend(
        head, Pairs(successors[flat], result.taps[flat], result.positions[flat], result.slots[flat], inputs)
    )
    return picked.spread(outputs.index_select(0, part.lasts), lay.counts.size)


def _successors(work: PrefillWork) -> Ints:
    """The prompt token after each token of a chunk; -1 where the prompt ends."""
    known = np.roll(work.token_ids, -1)
    known[np.cumsum(work.counts) - 1] = work.next_ids
    return known
