"""The choice at every node in one pass over the vocabulary, with noise made on the fly and filters by threshold search.

The references sort a row to filter it and read noise from memory. Top-k keeps the values that fewer than k exceed,
top-p those with less than p of the mass above them. Both are the lowest threshold with less than a limit of weight
above it, so one search finds both, four bits of an order-preserving integer per pass. Nothing is sorted, and a row's
answer depends on that row alone.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.contracts.sampling import GREEDY_BELOW
from aerie.engine.kernels.noise import noise_of, row_state
from aerie.engine.sampling.choose import FILTER_COLUMNS, Needs, edited
from aerie.engine.state.row_tables import RowTables

_BLOCK = 1024
_CHUNK = 8 * _BLOCK
"""Tokens per program of the last pass: several programs share a row, so that few rows fill the device."""


def choose(
    logits: Tensor, rows: Tensor, positions: Tensor, tables: RowTables, needs: Needs, *, noise: Tensor | None = None
) -> Tensor:
    """Does not read `noise`: the kernel makes it again."""
    logits = edited(logits, rows, positions, tables, needs)
    count, vocabulary = logits.shape
    floors = torch.full((count,), -(2**31), dtype=torch.int32, device=logits.device)
    if needs.noise and needs.filters:
        columns = (tables.sampling[name] for name in ("temperature", *FILTER_COLUMNS))
        find_floors[(count,)](floors, logits, rows, *columns, vocabulary, greedy_below=GREEDY_BELOW, block=_BLOCK)
    chunks = -(-vocabulary // _CHUNK)
    values = torch.empty((count, chunks), dtype=torch.float32, device=logits.device)
    tokens = torch.empty((count, chunks), dtype=torch.int32, device=logits.device)
    find_best[(count, chunks)](
        values,
        tokens,
        logits,
        rows,
        positions,
        tables.noise_keys,
        tables.sampling["temperature"],
        floors,
        vocabulary,
        chunks,
        noise=needs.noise,
        greedy_below=GREEDY_BELOW,
        chunk=_CHUNK,
        block=_BLOCK,
    )
    chosen = torch.empty(count, dtype=torch.int64, device=logits.device)
    best_of_chunks[(count,)](chosen, values, tokens, chunks, block=triton.next_power_of_2(chunks))
    return chosen


def filtered(scaled: Tensor, min_ps: Tensor, top_ks: Tensor, top_ps: Tensor) -> Tensor:
    count, vocabulary = scaled.shape
    floors = torch.empty(count, dtype=torch.int32, device=scaled.device)
    rows, ones = torch.arange(count, device=scaled.device), torch.ones(count, device=scaled.device)
    filters = (ones, min_ps, top_ks, top_ps)
    find_floors[(count,)](floors, scaled, rows, *filters, vocabulary, greedy_below=GREEDY_BELOW, block=_BLOCK)
    bits = scaled.view(torch.int32)
    return scaled.masked_fill((bits ^ ((bits >> 31) & 0x7FFFFFFF)) < floors[:, None], float("-inf"))


@triton.jit
def _ordered(values):
    """fp32 as int32 in the same order."""
    bits = values.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _floor(
    source,
    vocabulary,
    temperature,
    floor,
    peak,
    limit,
    by_mass: tl.constexpr,
    block: tl.constexpr,
):
    """The lowest int32 t >= floor such that the weight of the values above t is below the limit."""
    found = tl.full([], -(2**31), tl.int64)
    digits = tl.arange(0, 16).to(tl.int64)
    for digit in tl.static_range(8):
        step = tl.full([], 1 << (28 - 4 * digit), tl.int64)
        tops = found + digits * step + (step - 1)
        above = tl.zeros([16], tl.float32)
        for start in range(0, vocabulary, block):
            tokens = start + tl.arange(0, block)
            values = tl.div_rn(tl.load(source + tokens, mask=tokens < vocabulary, other=float("-inf")), temperature)
            order = _ordered(values)
            kept = (tokens < vocabulary) & (order >= floor)
            weight = tl.exp(values - peak) if by_mass else tl.full([block], 1.0, tl.float32)
            counted = kept[None, :] & (order.to(tl.int64)[None, :] > tops[:, None])
            above += tl.sum(tl.where(counted, weight[None, :], 0.0), 1)
        found += tl.sum((above >= limit).to(tl.int64), 0) * step
    return tl.maximum(found.to(tl.int32), floor)


@triton.jit
def find_floors(
    floors,
    logits,
    rows,
    temperatures,
    min_ps,
    top_ks,
    top_ps,
    vocabulary,
    greedy_below: tl.constexpr,
    block: tl.constexpr,
):
    """Grid (n). The ordered integer below which a row's tokens are filtered out: min-p, then top-k, then top-p."""
    node = tl.program_id(0).to(tl.int64)
    row, source = tl.load(rows + node), logits + node * vocabulary
    temperature = tl.load(temperatures + row)
    if temperature >= greedy_below:
        peak = tl.full([], float("-inf"), tl.float32)
        for start in range(0, vocabulary, block):
            tokens = start + tl.arange(0, block)
            values = tl.load(source + tokens, mask=tokens < vocabulary, other=float("-inf"))
            peak = tl.maximum(peak, tl.max(tl.div_rn(values, temperature), 0))
        least = tl.load(min_ps + row)
        floor = _ordered(tl.where(least > 0, peak + tl.log(tl.maximum(least, 1e-30)), float("-inf")))
        count, share = tl.load(top_ks + row), tl.load(top_ps + row)
        if count > 0:
            floor = _floor(source, vocabulary, temperature, floor, peak, count.to(tl.float32), False, block)
        if share < 1.0:
            mass = tl.zeros([], tl.float32)
            for start in range(0, vocabulary, block):
                tokens = start + tl.arange(0, block)
                values = tl.load(source + tokens, mask=tokens < vocabulary, other=float("-inf"))
                values = tl.div_rn(values, temperature)
                kept = (tokens < vocabulary) & (_ordered(values) >= floor)
                mass += tl.sum(tl.where(kept, tl.exp(values - peak), 0.0), 0)
            floor = _floor(source, vocabulary, temperature, floor, peak, share * mass, True, block)
        tl.store(floors + node, floor)


@triton.jit
def find_best(
    best_values,
    best_tokens,
    logits,
    rows,
    positions,
    noise_keys,
    temperatures,
    floors,
    vocabulary,
    chunks,
    noise: tl.constexpr,
    greedy_below: tl.constexpr,
    chunk: tl.constexpr,
    block: tl.constexpr,
):
    """Grid (n, chunks). The highest value of a chunk and the lowest token that has it."""
    node, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, floor = tl.load(rows + node), tl.load(floors + node)
    temperature = tl.load(temperatures + row)
    sampled = temperature >= greedy_below
    divisor = tl.where(sampled, temperature, 1.0)
    low, high = row_state(tl.load(noise_keys + row), tl.load(positions + node).to(tl.int64))
    best, chosen = tl.full([], float("-inf"), tl.float32), tl.full([], 2**31 - 1, tl.int32)
    for start in range(part * chunk, tl.minimum(part * chunk + chunk, vocabulary), block):
        tokens = start + tl.arange(0, block)
        values = tl.load(logits + node * vocabulary + tokens, mask=tokens < vocabulary, other=float("-inf"))
        if noise:
            values = tl.div_rn(values, divisor)
            kept = (_ordered(values) >= floor) & (tokens < vocabulary)
            values = tl.where(kept, tl.where(sampled, values + noise_of(low, high, tokens), values), float("-inf"))
        highest = tl.max(values, 0)
        first = tl.min(tl.where(values == highest, tokens, 2**31 - 1), 0)
        chosen = tl.where(highest > best, first, chosen)
        best = tl.maximum(best, highest)
    tl.store(best_values + node * chunks + part, best)
    tl.store(best_tokens + node * chunks + part, chosen)


@triton.jit
def best_of_chunks(chosen, values, tokens, chunks, block: tl.constexpr):
    """Grid (n). Ties go to the lowest token."""
    node, parts = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    value = tl.load(values + node * chunks + parts, mask=parts < chunks, other=float("-inf"))
    token = tl.load(tokens + node * chunks + parts, mask=parts < chunks, other=2**31 - 1)
    tl.store(chosen + node, tl.min(tl.where(value == tl.max(value, 0), token, 2**31 - 1), 0).to(tl.int64))
