"""Turns a plan's rows into tensors on the device: what both workers need to run a pass.

What the host knows is staged first, in one copy (`stage_changes`, `layout`, `cover`); then come the calls that launch
work. Invariant: no launch here reads a value from the device.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache, lru_cache

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.sampling import COLUMNS, GREEDY_BELOW
from aerie.contracts.step import Ints, StepPlan
from aerie.engine.attention import Planned
from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.sampling.choose import Needs
from aerie.engine.state.row_tables import RowTables
from aerie.engine.state.transfer import Transfer


@dataclass(frozen=True, slots=True)
class Layout:
    """The ragged token layout of a pass: `counts` tokens per row, row after row. On the device and [tokens] unless
    stated.
    """

    counts: Ints
    """[rows], on the host."""
    owners: Tensor
    """Index of each token's row among the step's rows."""
    places: Tensor
    """Index of each token within its row."""
    firsts: Tensor
    """[rows] index of each row's first token."""
    lasts: Tensor
    """[rows] index of each row's last token."""
    indptr: Tensor
    """[rows + 1] int32, on the host."""

    @property
    def width(self) -> int:
        """Tokens of the widest row."""
        return int(self.counts.max())

    @property
    def uniform(self) -> bool:
        return bool((self.counts == self.counts[0]).all())


def layout(counts: Ints, transfer: Transfer) -> Layout:
    """counts [rows]. Staged from the host where counts differ, else computed on the device."""
    if bool((counts == counts[0]).all()):
        return uniform_layout(counts.size, int(counts[0]), transfer.device)
    indptr = np.zeros(counts.size + 1, dtype=np.int32)
    np.cumsum(counts, out=indptr[1:])
    owners = np.repeat(np.arange(counts.size), counts)  # [tokens], as places
    places = np.arange(owners.size) - indptr[owners]
    return Layout(
        counts=counts,
        owners=transfer.put(owners),
        places=transfer.put(places),
        firsts=transfer.put(indptr[:-1]),
        lasts=transfer.put(indptr[1:] - 1),
        indptr=torch.from_numpy(indptr),
    )


def uniform_layout(rows: int, width: int, device: torch.device) -> Layout:
    """`rows` rows of `width` tokens each. Copies nothing to the device, so a graph may capture it."""
    return _kept_layout(rows, width) if device.type == "cpu" else _made_layout(rows, width, device)


@lru_cache(512)
def _kept_layout(rows: int, width: int) -> Layout:
    """A CPU captures nothing, so one layout per shape serves every step."""
    return _made_layout(rows, width, torch.device("cpu"))


def _made_layout(rows: int, width: int, device: torch.device) -> Layout:
    tokens = torch.arange(rows * width, device=device)
    firsts = torch.arange(0, rows * width, width, device=device)
    return Layout(
        counts=np.full(rows, width, dtype=np.int32),
        owners=tokens if width == 1 else torch.div(tokens, width, rounding_mode="floor"),
        places=torch.zeros_like(tokens) if width == 1 else tokens.remainder(width),
        firsts=firsts,
        lasts=firsts + (width - 1),
        indptr=torch.arange(0, rows * width + 1, width, dtype=torch.int32),
    )


@dataclass(frozen=True, slots=True)
class Cover:
    """The positions that the rows' pages cover in a pass: the host's upper bounds, staged for the device."""

    kv_indptr: Tensor
    """[rows + 1] int32, on the host."""
    last_page_len: Tensor
    """[rows] int32, on the host."""
    widest: int
    """Pages of the longest row; 0 where a held plan already has them."""
    inside: Tensor | None
    """[pages] int32 on the device: the places in [rows, widest] that belong to a row; None if all do."""
    exact: bool = False
    """The pages cover exactly what the pass reads."""
    held: Planned | None = None
    """In a captured graph: the plan that it replays with, instead of a new one for these pages."""
    on_device: tuple[Tensor, Tensor] | None = None
    """`kv_indptr` and `last_page_len` for recordings, which find them at a fixed address."""


def cover(positions: Ints, page_size: int, transfer: Transfer, *, exact: bool = False, fixed: bool = False) -> Cover:
    """positions [rows]. `fixed` stages the row arrays too, as the first values that are put."""
    page_counts = -(-positions // page_size)  # [rows], as last
    kv_indptr = np.zeros(positions.size + 1, dtype=np.int32)
    np.cumsum(page_counts, out=kv_indptr[1:])
    last = (positions - (page_counts - 1) * page_size).astype(np.int32)
    on_device = (transfer.put(kv_indptr, np.int32), transfer.put(last, np.int32)) if fixed else None
    widest = int(page_counts.max())
    inside = None
    if int(page_counts.min()) != widest:
        inside = transfer.put(np.flatnonzero(np.arange(widest) < page_counts[:, None]), np.int32)
    return Cover(torch.from_numpy(kv_indptr), torch.from_numpy(last), widest, inside, exact, on_device=on_device)


def page_list(tables: RowTables, rows: Tensor, covered: Cover) -> Tensor:
    """[pages] int32: the pages of table rows [n], row after row."""
    flat = tables.pages[:, : covered.widest].index_select(0, rows).view(-1)  # [n * widest]
    return flat if covered.inside is None else flat.index_select(0, covered.inside)


def attention_inputs(
    tables: RowTables,
    rows: Tensor,
    prefix_lens: Tensor,
    covered: Cover,
    indptr: Tensor,
    words: Tensor | None = None,
    pages: Tensor | None = None,
) -> AttentionInputs:
    """Attention inputs of a pass over table rows [n] whose pages cover `covered`: prefix_lens [n], indptr [n + 1],
    words [queries]; `pages` is their `page_list`, if the caller has it.
    """
    return AttentionInputs(
        qo_indptr=indptr,
        kv_indptr=covered.kv_indptr,
        kv_indices=page_list(tables, rows, covered) if pages is None else pages,
        last_page_len=covered.last_page_len,
        prefix_lens=prefix_lens,
        words=words,
        page_size=tables.page_size,
        exact=covered.exact,
        held=covered.held,
    )


_FLAGS = {flag.name: 1 << place for place, flag in enumerate(fields(Needs))}
"""The bit of each flag of Needs."""


class RowNeeds:
    """The host's copy of what each row needs, so that a step without sampling or filters does no work for them."""

    def __init__(self, rows: int) -> None:
        self._of = [0] * rows

    def note(self, plan: StepPlan) -> None:
        """Notes the needs of rows that get a new owner in this step. Call it before the step is staged."""
        starts = plan.starts
        if starts is None:
            return
        sampled = starts.sampling["temperature"] >= GREEDY_BELOW  # [starts], as needs
        needs = sampled * _FLAGS["noise"] | (starts.min_lengths > starts.prompt_lengths) * _FLAGS["bans"]
        for name, field in COLUMNS.items():
            if field.need is not None:
                needs |= (starts.sampling[name] != field.neutral) * _FLAGS[field.need]
        if starts.edits is not None:
            needs |= (starts.edits.slots >= 0) * _FLAGS["edits"]
        needs = np.where(sampled, needs, needs & ~_FLAGS["filters"])  # filters leave the likeliest token
        for row, own in zip(starts.rows, needs, strict=True):
            self._of[row] = int(own)

    def of(self, rows: Ints) -> Needs:
        found = 0
        for row in rows:
            found |= self._of[row]
        return _needs_of(found)


@cache
def _needs_of(flags: int) -> Needs:
    return Needs(*(bool(flags & flag) for flag in _FLAGS.values()))


def stage_changes(plan: StepPlan, tables: RowTables, transfer: Transfer) -> Callable[[], None]:
    """Stages row starts, then page updates, in the contract's order. The returned function writes them to tables."""
    writes = []
    if plan.starts is not None:
        writes.append(tables.staged_start(plan.starts, transfer))
    if plan.page_updates is not None:
        writes.append(tables.staged_pages(plan.page_updates, transfer))

    def write() -> None:
        for change in writes:
            change()

    return write
