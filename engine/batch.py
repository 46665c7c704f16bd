"""From a plan's rows to tensors on the device: what both workers need to run a pass."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from contracts.sampling import GREEDY_BELOW
from contracts.step import Ints, RowStarts, StepPlan
from engine.attention.inputs import AttentionInputs
from engine.choose import Needs
from engine.row_tables import RowTables


@dataclass(frozen=True, slots=True)
class Layout:
    """Ragged places of a pass: row by row, `counts` tokens each. All on the device, [tokens] unless said."""

    counts: Ints
    """[rows], on the host."""
    owners: Tensor
    """Index into the step's rows of each token."""
    places: Tensor
    """Place of each token in its row."""
    indptr: Tensor
    """[rows + 1] int32, on the host."""


def layout(counts: Ints, device: torch.device | str = "cpu") -> Layout:
    owners = np.repeat(np.arange(counts.size), counts)
    indptr = np.zeros(counts.size + 1, dtype=np.int32)
    np.cumsum(counts, out=indptr[1:])
    places = np.arange(owners.size) - indptr[owners]
    return Layout(
        counts,
        torch.from_numpy(owners).to(device),
        torch.from_numpy(places).to(device),
        torch.from_numpy(indptr),
    )


def attention_inputs(
    tables: RowTables, rows: Tensor, prefix_lens: Tensor, covered: Ints, indptr: Tensor, words: Tensor | None = None
) -> AttentionInputs:
    """Inputs of a pass over device rows [n] whose pages cover `covered` [n] positions (an upper bound, known to the
    host).
    """
    size = tables.page_size
    page_counts = -(-covered // size)
    kv_indptr = np.zeros(covered.size + 1, dtype=np.int32)
    np.cumsum(page_counts, out=kv_indptr[1:])
    widest = int(page_counts.max())
    indices = tables.pages[rows, :widest]
    if int(page_counts.min()) == widest:
        flat = indices.reshape(-1)
    else:
        inside = torch.from_numpy(np.flatnonzero(np.arange(widest) < page_counts[:, None]))
        flat = indices.reshape(-1).index_select(0, inside.to(indices.device))
    last = covered - (page_counts - 1) * size
    return AttentionInputs(
        qo_indptr=indptr,
        kv_indptr=torch.from_numpy(kv_indptr),
        kv_indices=flat,
        last_page_len=torch.from_numpy(last.astype(np.int32)),
        prefix_lens=prefix_lens,
        words=words,
        page_size=size,
    )


class RowNeeds:
    """The host's copy of what each row calls for, so that a step without sampling or filters costs nothing for them."""

    def __init__(self, rows: int) -> None:
        self._noise = np.zeros(rows, dtype=np.bool_)
        self._filters = np.zeros(rows, dtype=np.bool_)
        self._bans = np.zeros(rows, dtype=np.bool_)

    def start(self, starts: RowStarts) -> None:
        sampled = starts.temperatures >= GREEDY_BELOW
        self._noise[starts.rows] = sampled
        self._filters[starts.rows] = sampled & ((starts.top_ks > 0) | (starts.top_ps < 1) | (starts.min_ps > 0))
        self._bans[starts.rows] = starts.min_lengths > starts.prompt_lengths

    def of(self, rows: Ints) -> Needs:
        return Needs(
            noise=bool(self._noise[rows].any()),
            filters=bool(self._filters[rows].any()),
            bans=bool(self._bans[rows].any()),
        )


def on_device(values: np.ndarray, device: torch.device | str = "cpu") -> Tensor:
    """A plan's array as int64 on the device."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device=device, dtype=torch.int64)


def apply_changes(plan: StepPlan, tables: RowTables, needs: RowNeeds) -> None:
    """Row starts, then page updates, as the contract orders them."""
    if plan.starts is not None:
        tables.start(plan.starts)
        needs.start(plan.starts)
    if plan.page_updates is not None:
        tables.update_pages(plan.page_updates)
