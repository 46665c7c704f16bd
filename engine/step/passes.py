"""The target's two passes without drafts: a prefill chunk, and one token for each row. Both workers run them: `stage_*`
first, which copies, then the pass, which only launches.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.step import StepPlan
from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.grammars.choice import hold
from aerie.engine.sampling.choose import Needs, choose, token_logprobs
from aerie.engine.sampling.ending import Committed, cut
from aerie.engine.step.batch import Cover, Layout, attention_inputs, cover, layout, uniform_layout
from aerie.engine.step.state import DeviceState

Ranked = tuple[Tensor, Tensor, Tensor]
"""Log probabilities of the chosen tokens [n], the most likely ids and their log probabilities [n, count]."""


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass chose for each of `rows` [n], and what a head needs to extend it."""

    rows: Tensor
    tokens: Tensor
    """[n] chosen ids; meaningless in rows that committed nothing."""
    committed: Committed
    lengths: Tensor
    """[n] true lengths after the pass."""
    done: Tensor
    """[n] bool: rows that have ended."""
    taps: Tensor | None
    """[tokens, boundaries * hidden]."""
    layout: Layout
    positions: Tensor
    """[tokens] positions of the pass."""
    slots: Tensor
    """[tokens] slots of the positions."""
    inputs: AttentionInputs
    ranked: Ranked | None


@dataclass(frozen=True, slots=True)
class Chunks:
    """A staged prefill of n rows, [n] each unless stated."""

    rows: Tensor
    generations: Tensor
    token_ids: Tensor
    """[tokens]"""
    starts: Tensor
    ends: Tensor
    is_last: Tensor
    layout: Layout
    cover: Cover
    finished: Tensor | None
    """Indices of the rows that read their last chunk; None if all do."""


def stage_prefill(state: DeviceState, plan: StepPlan) -> Chunks:
    work, put = plan.prefill, state.transfer.put
    assert work is not None
    ends = (work.starts + work.counts).astype(np.int32)
    return Chunks(
        rows=put(plan.rows),
        generations=put(plan.generations),
        token_ids=put(work.token_ids),
        starts=put(work.starts),
        ends=put(ends),
        is_last=put(work.is_last, np.bool_),
        layout=layout(work.counts, state.transfer),
        cover=cover(ends, state.tables.page_size, state.transfer, exact=True),
        finished=None if work.is_last.all() else put(np.flatnonzero(work.is_last)),
    )


def prefill(state: DeviceState, plan: StepPlan, chunks: Chunks, *, taps: bool) -> PassResult:
    """Runs a chunk of each row. Rows at their last chunk choose their first token; the others commit nothing."""
    rows, lay, lengths = chunks.rows, chunks.layout, chunks.ends
    positions = chunks.starts[lay.owners] + lay.places  # [tokens], as slots
    slots = state.tables.slots(rows[lay.owners], positions)
    inputs = attention_inputs(state.tables, rows, chunks.starts, chunks.cover, lay.indptr)
    out = state.target.forward(chunks.token_ids, positions, slots, inputs, lay.lasts, taps=taps)
    needs = state.needs.of(plan.rows)
    chosen = _choose(state, out.logits, rows, lengths, needs)
    committed = state.kernels[cut](chosen[:, None], chunks.is_last.long(), lengths, ~chunks.is_last, rows, state.tables)
    if needs.edits:
        state.tables.edits.count(rows, chosen[:, None], committed.counts)
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
        ranked=_ranked(out.logits, chosen, plan.logprobs),
    )


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The staged rows of a plain decode, [n] each."""

    rows: Tensor
    generations: Tensor
    layout: Layout
    cover: Cover
    real: Tensor | None = None
    """[n] bool in a captured graph: False marks surplus rows, which commit nothing. None if all rows are the plan's."""
    prefix_lens: Tensor | None = None
    """[n] int64 in a captured graph: where its attention reads the true lengths."""


def stage_decode(state: DeviceState, plan: StepPlan) -> DecodeRows:
    assert plan.decode is not None
    return DecodeRows(
        rows=state.transfer.put(plan.rows),
        generations=state.transfer.put(plan.generations),
        layout=uniform_layout(plan.rows.size, 1, state.device),
        cover=cover(plan.decode.bounds + 1, state.tables.page_size, state.transfer),
    )


def decode(state: DeviceState, places: DecodeRows, needs: Needs, *, taps: bool, logprobs: int = -1) -> PassResult:
    """Runs the root of each row and chooses the next token. Rows that were done write to the dummy page and commit
    nothing.
    """
    rows, lay = places.rows, places.layout
    roots, lengths, done, _ = read_rows(state, rows, places.generations, places.real)
    owners = torch.where(done, state.tables.dummy_row, rows)  # [n], as slots
    slots = state.tables.slots(owners, lengths)
    prefix = lengths if places.prefix_lens is None else places.prefix_lens.copy_(lengths)
    inputs = attention_inputs(state.tables, rows, prefix, places.cover, lay.indptr)
    out = state.target.forward(roots, lengths, slots, inputs, None, taps=taps)
    chosen = _choose(state, out.logits, rows, lengths + 1, needs)
    committed = state.kernels[cut](chosen[:, None], torch.ones_like(lengths), lengths + 1, done, rows, state.tables)
    if needs.edits:
        state.tables.edits.count(rows, chosen[:, None], committed.counts)
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
        ranked=_ranked(out.logits, chosen, logprobs),
    )


def _choose(state: DeviceState, logits: Tensor, rows: Tensor, positions: Tensor, needs: Needs) -> Tensor:
    """logits [n, V] of rows [n] -> the tokens [n] at positions [n], held to the rows' grammars."""
    chosen = state.kernels[choose](logits, rows, positions, state.tables, needs)

    def among(row: int, allowed: Tensor) -> Tensor:
        own = slice(row, row + 1)
        return state.kernels[choose](logits[own], rows[own], positions[own], state.tables, needs, allowed=allowed)

    if state.guides is not None:
        hold(state.guides, chosen, among)
    return state.agree(chosen)


def read_rows(
    state: DeviceState, rows: Tensor, generations: Tensor, real: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The FutureMap's bonus, length, done flag and draft seed of rows [n]: [n] each, seeds [n, seed_width]. Surplus
    rows, False in `real`, are done at length 0.
    """
    tokens, lengths, done, seeds = state.futures.read(generations, rows)
    if real is None:
        return tokens, lengths, done, seeds
    return torch.where(real, tokens, 0), torch.where(real, lengths, 0), done | ~real, seeds


def plain_pass(state: DeviceState, plan: StepPlan, staged: Chunks | DecodeRows, *, taps: bool) -> PassResult:
    if isinstance(staged, Chunks):
        return prefill(state, plan, staged, taps=taps)
    return decode(state, staged, state.needs.of(plan.rows), taps=taps, logprobs=plan.logprobs)


def publish(state: DeviceState, staged: Chunks | DecodeRows, result: PassResult, seeds: Tensor | None = None) -> None:
    """Writes the other generation of every row that the pass advanced: all rows of a decode, finished prompts of a
    prefill.
    """
    kept = staged.finished if isinstance(staged, Chunks) else None

    def of(values: Tensor) -> Tensor:
        return values if kept is None else values.index_select(0, kept)

    state.futures.publish(
        of(1 - staged.generations),
        of(result.rows),
        bonus=of(result.tokens),
        lengths=of(result.lengths),
        done=of(result.done),
        seeds=None if seeds is None else of(seeds),
    )


def _ranked(logits: Tensor, chosen: Tensor, logprobs: int) -> Ranked | None:
    return token_logprobs(logits, chosen, logprobs) if logprobs >= 0 else None
