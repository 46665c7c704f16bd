"""The pairs with which a pass extends the drafter: pair j of a row is (tap a_j, token x_(j+1)).

Made after every pass that commits tokens or reads a prompt, also when nothing was drafted: a head that skipped tokens
would draft from a hole in its KV.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.step import Ints, PrefillWork, StepPlan
from aerie.engine.state.row_tables import RowTables
from aerie.engine.state.transfer import Transfer
from aerie.engine.step.batch import Cover, Layout, attention_inputs, cover, layout
from aerie.engine.step.passes import PassResult
from aerie.spec.drafters.drafter import Drafter, Pairs
from aerie.spec.round.rows import DraftedRows, SomeRows, drafted_rows


def read_taps(taps: Tensor | None, tokens: Tensor) -> Tensor:
    """The taps [T, taps * target hidden] of a pass over tokens [T]; of width 0 for a drafter without taps."""
    return tokens.new_empty(tokens.numel(), 0) if taps is None else taps


class Successors(Protocol):
    """The token after each token of a pass."""

    def after(self, result: PassResult) -> Tensor:
        """[T]"""


class ChosenTokens:
    """Those of a decode step: what it chose."""

    def after(self, result: PassResult) -> Tensor:
        return result.tokens


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Those of a prefill: the prompt's own, and at its end what was chosen."""

    known: Tensor
    """[T], undefined at a prompt's end."""
    ends: Tensor
    """[R] bool: prompts that end here."""

    def after(self, result: PassResult) -> Tensor:
        lasts = result.layout.lasts  # [R]
        chosen = torch.where(self.ends, result.tokens, self.known.index_select(0, lasts))
        return self.known.index_copy(0, lasts, chosen)


class PassPairs(Protocol):
    """The pairs of the rows of a pass that extend the drafter."""

    def of(self, tables: RowTables, result: PassResult, tokens: Tensor) -> Pairs:
        """`tokens` [T] come after the tokens of the pass."""


class AllPairs:
    """Every row's; their layout is that of the pass."""

    def of(self, tables: RowTables, result: PassResult, tokens: Tensor) -> Pairs:
        taps = read_taps(result.taps, tokens)
        return Pairs(tokens, taps, result.positions, result.slots, result.inputs, result.layout.lasts)


@dataclass(frozen=True, slots=True)
class SomePairs:
    """Those of some rows."""

    rows: SomeRows
    layout: Layout
    """Of these rows alone."""
    cover: Cover

    def of(self, tables: RowTables, result: PassResult, tokens: Tensor) -> Pairs:
        own = self.layout
        flat = self.rows.pick(result.layout.firsts)[own.owners] + own.places  # [t] of the pass's tokens
        prefixes, rows = self.rows.pick(result.inputs.prefix_lens), self.rows.pick(result.rows)  # [r]
        return Pairs(
            tokens=tokens[flat],
            taps=read_taps(result.taps, tokens)[flat],
            positions=result.positions[flat],
            slots=result.slots[flat],
            inputs=attention_inputs(tables, rows, prefixes, self.cover, own.indptr),
            lasts=own.lasts,
        )


@dataclass(frozen=True, slots=True)
class StagedExtend:
    """How a pass that drafted nothing extends the drafter."""

    rows: DraftedRows
    pairs: PassPairs
    successors: Successors


def stage_extend(plan: StepPlan, page_size: int, transfer: Transfer) -> StagedExtend:
    prefill, decode = plan.prefill, plan.decode
    rows = drafted_rows(plan.drafting, transfer)
    pairs: PassPairs = AllPairs()
    if isinstance(rows, SomeRows):
        if prefill is not None:
            counts, covered = prefill.counts, prefill.starts + prefill.counts
        else:
            assert decode is not None
            counts, covered = np.ones(plan.rows.size, dtype=np.int32), decode.bounds + 1
        own = layout(rows.of(counts), transfer)
        pairs = SomePairs(rows, own, cover(rows.of(covered), page_size, transfer, exact=prefill is not None))
    successors: Successors = ChosenTokens()
    if prefill is not None:
        successors = PromptTokens(transfer.put(_successors(prefill)), transfer.put(prefill.is_last, np.bool_))
    return StagedExtend(rows, pairs, successors)


def extend_pass(drafter: Drafter, tables: RowTables, result: PassResult, staged: StagedExtend) -> Tensor:
    """Extends the drafter with a prefill chunk or a plain decode step -> draft seeds [R, H], zero in rows that do not
    extend it.
    """
    pairs = staged.pairs.of(tables, result, staged.successors.after(result))
    return staged.rows.spread(drafter.extend(pairs), result.layout.counts.size)


def _successors(work: PrefillWork) -> Ints:
    """[T] the prompt token after each token of a chunk; -1 where the prompt ends."""
    known = np.roll(work.token_ids, -1)
    known[np.cumsum(work.counts) - 1] = work.next_ids
    return known
