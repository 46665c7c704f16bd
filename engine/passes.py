"""The two passes of the target that need no draft: a prefill chunk, and one token for each row. Both workers run
them.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from contracts.step import Bools, Ints, StepPlan
from engine.attention.inputs import AttentionInputs
from engine.batch import Layout, attention_inputs, layout, on_device
from engine.choose import choose, token_logprobs
from engine.ending import Committed, cut
from engine.state import DeviceState

Ranked = tuple[Tensor, Tensor, Tensor]
"""Log probabilities of the chosen tokens, the likeliest ids and theirs."""


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass chose for each of `rows` [n], and what a head needs to follow it."""

    rows: Tensor
    tokens: Tensor
    """[n] chosen ids; meaningless where nothing was committed."""
    committed: Committed
    lengths: Tensor
    """[n] true lengths after the pass."""
    done: Tensor
    taps: Tensor | None
    """[tokens, boundaries * hidden]."""
    layout: Layout
    positions: Tensor
    """[tokens] of the pass."""
    slots: Tensor
    inputs: AttentionInputs
    covered: Ints
    """[rows] positions that the pass's pages were planned for, on the host."""
    ranked: Ranked | None


def prefill(state: DeviceState, plan: StepPlan, *, taps: bool) -> PassResult:
    """Runs a chunk of each row; rows at their last chunk choose their first token, the others commit nothing."""
    work = plan.prefill
    assert work is not None
    rows, starts = on_device(plan.rows, state.device), on_device(work.starts, state.device)
    lay = layout(work.counts, state.device)
    positions = starts[lay.owners] + lay.places
    slots = state.tables.slots(rows[lay.owners], positions)
    ends = (work.starts + work.counts).astype(np.int32)
    inputs = attention_inputs(state.tables, rows, starts, ends, lay.indptr)
    last_tokens = (lay.indptr[1:] - 1).to(state.device)
    out = state.target.forward(
        on_device(work.token_ids, state.device), positions, slots, inputs, last_tokens, taps=taps
    )
    lengths = on_device(ends, state.device)
    chosen = choose(out.logits, rows, lengths, state.tables, state.needs.of(plan.rows))
    is_last = torch.from_numpy(work.is_last).to(state.device)
    committed = cut(chosen[:, None], is_last.long(), lengths, ~is_last, rows, state.tables)
    return PassResult(
        rows=rows,
        tokens=chosen,
        committed=committed,
        lengths=lengths,
        done=committed.done,
        taps=out.taps,
        layout=lay,
        positions=positions,
        slots=slots,
        inputs=inputs,
        covered=ends,
        ranked=_ranked(out.logits, chosen, plan),
    )


def decode(state: DeviceState, plan: StepPlan, *, taps: bool) -> PassResult:
    """Runs the root of each row and chooses what follows; rows that were done write to the dummy page and commit
    nothing.
    """
    assert plan.decode is not None
    rows, turns = on_device(plan.rows, state.device), on_device(plan.turns, state.device)
    roots, lengths, done, _ = state.futures.read(turns, rows)
    owners = torch.where(done, state.tables.dummy_row, rows)
    lay = layout(np.ones(plan.rows.size, dtype=np.int32), state.device)
    slots = state.tables.slots(owners, lengths)
    covered = plan.decode.bounds + 1
    inputs = attention_inputs(state.tables, rows, lengths, covered, lay.indptr)
    out = state.target.forward(roots, lengths, slots, inputs, None, taps=taps)
    chosen = choose(out.logits, rows, lengths + 1, state.tables, state.needs.of(plan.rows))
    committed = cut(chosen[:, None], torch.ones_like(lengths), lengths + 1, done, rows, state.tables)
    return PassResult(
        rows=rows,
        tokens=chosen,
        committed=committed,
        lengths=lengths + committed.counts,
        done=done | committed.done,
        taps=out.taps,
        layout=lay,
        positions=lengths,
        slots=slots,
        inputs=inputs,
        covered=covered,
        ranked=_ranked(out.logits, chosen, plan),
    )


def publish(state: DeviceState, plan: StepPlan, result: PassResult, seeds: Tensor | None = None) -> None:
    """Writes the other generation of every row that the pass moved: all of a decode, the finished prompts of a
    prefill.
    """
    writers: Bools = np.ones(plan.rows.size, dtype=np.bool_) if plan.prefill is None else plan.prefill.is_last
    kept = torch.from_numpy(np.flatnonzero(writers)).to(state.device)
    turns = 1 - on_device(plan.turns, state.device)
    state.futures.publish(
        turns[kept],
        result.rows[kept],
        bonus=result.tokens[kept],
        lengths=result.lengths[kept],
        done=result.done[kept],
        seeds=None if seeds is None else seeds[kept],
    )


def _ranked(logits: Tensor, chosen: Tensor, plan: StepPlan) -> Ranked | None:
    return token_logprobs(logits, chosen, plan.logprobs) if plan.logprobs >= 0 else None
