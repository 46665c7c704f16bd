"""The target's two passes without drafts: a prefill chunk, and one token for each row. Both workers run them: `stage_*`
first, which copies, then the pass and the choice, which only launch. Where a grammar's masks are made beside the
device, the step is cut between these two.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.step import StepPlan
from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.grammars.choice import hold
from aerie.engine.grammars.masked import Places
from aerie.engine.sampling.choose import Needs, choose, token_logprobs
from aerie.engine.sampling.ending import Committed, cut
from aerie.engine.sampling.masks import Masks
from aerie.engine.step.batch import Cover, Layout, attention_inputs, cover, layout, uniform_layout
from aerie.engine.step.state import DeviceState

Ranked = tuple[Tensor, Tensor, Tensor]
"""Log probabilities of the chosen tokens [n], the most likely ids and their log probabilities [n, count]."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A pass over n rows, up to its logits."""

    rows: Tensor
    logits: Tensor
    """[n, V] fp32 after each row's last token."""
    lengths: Tensor
    """[n] true lengths; those of a prefill have its chunk."""
    closed: Tensor
    """[n] bool: rows that commit nothing."""
    root: tuple[Tensor, Tensor] | None
    """[n] the tokens that a decode ran, which its lengths do not count, and the draft seeds [n, H]; None in a prefill.
    """
    taps: Tensor | None
    layout: Layout
    positions: Tensor
    slots: Tensor
    inputs: AttentionInputs

    def places(self) -> Places:
        """Of the logits."""
        count = self.layout.counts.size
        return Places(np.ones(count, dtype=np.int32), np.arange(count, dtype=np.int32), count)


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
    seeds: Tensor | None = None
    """[n, H] the draft seeds that a decode's rows had before it; None after a prefill."""
    late: Tensor | None = None
    """[n] bool: rows that commit nothing, since their mask is missing; None without masks."""


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


def prefill(state: DeviceState, chunks: Chunks, *, taps: bool) -> Passed:
    """Runs a chunk of each row. Rows at their last chunk choose their first token; the others commit nothing."""
    rows, lay = chunks.rows, chunks.layout
    positions = chunks.starts[lay.owners] + lay.places  # [tokens], as slots
    slots = state.tables.slots(rows[lay.owners], positions)
    inputs = attention_inputs(state.tables, rows, chunks.starts, chunks.cover, lay.indptr)
    out = state.target.forward(chunks.token_ids, positions, slots, inputs, lay.lasts, taps=taps)
    return Passed(rows, out.logits, chunks.ends, ~chunks.is_last, None, out.taps, lay, positions, slots, inputs)


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


def decode(state: DeviceState, places: DecodeRows, *, taps: bool) -> Passed:
    """Runs the root of each row. Rows that were done write to the dummy page and commit nothing."""
    rows, lay = places.rows, places.layout
    roots, lengths, done, seeds = read_rows(state, rows, places.generations, places.real)
    owners = torch.where(done, state.tables.dummy_row, rows)  # [n], as slots
    slots = state.tables.slots(owners, lengths)
    prefix = lengths if places.prefix_lens is None else places.prefix_lens.copy_(lengths)
    inputs = attention_inputs(state.tables, rows, prefix, places.cover, lay.indptr)
    out = state.target.forward(roots, lengths, slots, inputs, None, taps=taps)
    return Passed(rows, out.logits, lengths, done, (roots, seeds), out.taps, lay, lengths, slots, inputs)


def choose_next(
    state: DeviceState, passed: Passed, needs: Needs, *, masks: Masks | None = None, logprobs: int = -1
) -> PassResult:
    """Chooses each row's next token and commits it, unless its mask is missing."""
    rows, lengths, closed, known = passed.rows, passed.lengths, passed.closed, passed.lengths
    if passed.root is not None:
        known = known + 1
    chosen = _choose(state, passed.logits, rows, known, needs, masks)
    late = None
    if masks is not None and passed.root is not None:
        late = masks.missing
        closed, chosen = closed | late, torch.where(late, passed.root[0], chosen)
    committed = state.kernels[cut](chosen[:, None], torch.ones_like(known), known, closed, rows, state.tables)
    if needs.edits:
        state.tables.edits.count(rows, chosen[:, None], committed.counts)
    return PassResult(
        rows=rows,
        tokens=chosen,
        committed=committed,
        lengths=lengths if passed.root is None else lengths + committed.counts,
        done=passed.closed | committed.done,
        taps=passed.taps,
        layout=passed.layout,
        positions=passed.positions,
        slots=passed.slots,
        inputs=passed.inputs,
        ranked=_ranked(passed.logits, chosen, logprobs),
        seeds=None if passed.root is None else passed.root[1],
        late=late,
    )


def _choose(
    state: DeviceState, logits: Tensor, rows: Tensor, positions: Tensor, needs: Needs, masks: Masks | None
) -> Tensor:
    """logits [n, V] of rows [n] -> the tokens [n] at positions [n], held to the rows' grammars."""
    allowed = None if masks is None else masks.allowed(logits.shape[1])
    chosen = state.kernels[choose](logits, rows, positions, state.tables, needs, allowed=allowed)

    def among(row: int, mask: Masks) -> Tensor:
        own = slice(row, row + 1)
        given = logits[own], rows[own], positions[own], state.tables, needs
        return state.kernels[choose](*given, allowed=mask.allowed(logits.shape[1]))

    if state.guides is not None and state.masked is None:
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


def plain_pass(state: DeviceState, staged: Chunks | DecodeRows, *, taps: bool) -> Passed:
    if isinstance(staged, Chunks):
        return prefill(state, staged, taps=taps)
    return decode(state, staged, taps=taps)


def publish(state: DeviceState, staged: Chunks | DecodeRows, result: PassResult, seeds: Tensor | None = None) -> None:
    """Writes the other generation of every row that the pass advanced: all rows of a decode, finished prompts of a
    prefill.
    """
    kept = staged.finished if isinstance(staged, Chunks) else None

    def of(values: Tensor) -> Tensor:
        return values if kept is None else values.index_select(0, kept)

    if result.late is not None and result.seeds is not None and seeds is not None:
        seeds = torch.where(result.late[:, None], result.seeds, seeds)

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
