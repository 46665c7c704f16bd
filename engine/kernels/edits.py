"""Edited logits in one pass over the vocabulary, then a second one over the few ids that are drafted above a node."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.engine.sampling.edits import MOST, PENALTIES
from aerie.engine.state.row_tables import RowTables

_BLOCK = 1024


def edit(logits: Tensor, rows: Tensor, tables: RowTables, path: Tensor | None) -> Tensor:
    """As the reference, in double precision too."""
    count, vocabulary = logits.shape
    edits, out = tables.edits, torch.empty_like(logits)
    given = (
        rows,
        edits.slots,
        edits.counts,
        edits.biases,
        *(tables.sampling[name] for name in PENALTIES),
        edits.dummy,
        vocabulary,
    )
    edit_by_counts[(count, triton.cdiv(vocabulary, _BLOCK))](out, logits, *given, most=MOST, block=_BLOCK)
    if path is not None:
        width = path.shape[1]
        edit_drafted[(count,)](
            out, logits, path.contiguous(), *given, width, most=MOST, block=triton.next_power_of_2(width)
        )
    return out


@triton.jit
def edit_by_counts(
    out,
    logits,
    rows,
    slots,
    counts,
    biases,
    repetitions,
    frequencies,
    presences,
    no_slot,
    vocabulary,
    most: tl.constexpr,
    block: tl.constexpr,
):
    """Grid (n, blocks of the vocabulary)."""
    node, tokens = tl.program_id(0).to(tl.int64), tl.program_id(1) * block + tl.arange(0, block)
    row, inside = tl.load(rows + node), tokens < vocabulary
    slot = tl.load(slots + row)
    values = tl.load(logits + node * vocabulary + tokens, mask=inside)
    if slot != no_slot:
        counted = tl.load(counts + slot * vocabulary + tokens, mask=inside, other=0)
        bias = tl.load(biases + slot * vocabulary + tokens, mask=inside, other=0.0)
        values = edited(values, bias, counted, 0, row, repetitions, frequencies, presences, most)
    tl.store(out + node * vocabulary + tokens, values, mask=inside)


@triton.jit
def edit_drafted(
    out,
    logits,
    path,
    rows,
    slots,
    counts,
    biases,
    repetitions,
    frequencies,
    presences,
    no_slot,
    vocabulary,
    width,
    most: tl.constexpr,
    block: tl.constexpr,
):
    """Grid (n). The ids of a node's path, again from the raw logits: equal ids store equal values."""
    node, places = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    row = tl.load(rows + node)
    slot = tl.load(slots + row)
    if slot != no_slot:
        ids = tl.load(path + node * width + places, mask=places < width, other=-1)
        drafted = ids >= 0
        more = tl.sum((ids[:, None] == ids[None, :]).to(tl.int32), 1)
        values = tl.load(logits + node * vocabulary + ids, mask=drafted, other=0.0)
        counted = tl.load(counts + slot * vocabulary + ids, mask=drafted, other=0)
        bias = tl.load(biases + slot * vocabulary + ids, mask=drafted, other=0.0)
        values = edited(values, bias, counted, more, row, repetitions, frequencies, presences, most)
        tl.store(out + node * vocabulary + ids, values, mask=drafted)


@triton.jit
def edited(raw, bias, counted, more, row, repetitions, frequencies, presences, most: tl.constexpr):
    """`more` of the token are drafted above and at the node."""
    repetition = tl.load(repetitions + row).to(tl.float64)
    frequency = tl.load(frequencies + row).to(tl.float64)
    presence = tl.load(presences + row).to(tl.float64)
    count = (counted & 0x7FFFFFFF) + more
    value = raw.to(tl.float64) + bias.to(tl.float64)
    known = (counted < 0) | (count > 0)
    value = tl.where(known, tl.where(value > 0, value / repetition, value * repetition), value)
    value = value - frequency * count.to(tl.float64) - presence * (count > 0).to(tl.float64)
    return tl.minimum(value, most).to(tl.float32)
