"""The choice at every node in one pass over the vocabulary, with noise made on the fly and filters by threshold search.

The references sort a row to filter it and read noise from memory; here thresholds are searched (floors.py), and noise
is made only for blocks of tokens in which one can still win. A row's answer depends on that row alone.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.contracts.sampling import GREEDY_BELOW
from aerie.engine.kernels.edits import edit
from aerie.engine.kernels.floors import LOWEST, find_floors, ordered
from aerie.engine.kernels.noise import MOST, noise_of, row_state
from aerie.engine.sampling.choose import FILTER_COLUMNS, Needs, edited
from aerie.engine.state.row_tables import RowTables

_BLOCK = 1024
_CHUNK = 8 * _BLOCK
"""Tokens per program of the last pass: several programs share a row, so that few rows fill the device."""


def choose(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    tables: RowTables,
    needs: Needs,
    *,
    noise: Tensor | None = None,
    path: Tensor | None = None,
    allowed: Tensor | None = None,
) -> Tensor:
    """Does not read `noise`: the kernel makes it again."""
    logits = edited(logits, rows, positions, tables, needs, path, allowed, edit)
    count, vocabulary = logits.shape
    temperatures = tables.sampling["temperature"]
    if needs.noise and needs.filters:
        columns = tuple(tables.sampling[name] for name in FILTER_COLUMNS)
        floors = find_floors(logits, rows, temperatures, columns, GREEDY_BELOW)
    else:
        floors = torch.full((count,), LOWEST, dtype=torch.int32, device=logits.device)
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
        temperatures,
        floors,
        vocabulary,
        chunks,
        noise=needs.noise,
        greedy_below=GREEDY_BELOW,
        most_noise=MOST,
        chunk=_CHUNK,
        block=_BLOCK,
    )
    chosen = torch.empty(count, dtype=torch.int64, device=logits.device)
    best_of_chunks[(count,)](chosen, values, tokens, chunks, block=triton.next_power_of_2(chunks))
    return chosen


def filtered(scaled: Tensor, min_ps: Tensor, top_ks: Tensor, top_ps: Tensor) -> Tensor:
    count = scaled.shape[0]
    rows, ones = torch.arange(count, device=scaled.device), torch.ones(count, device=scaled.device)
    floors = find_floors(scaled, rows, ones, (min_ps, top_ks, top_ps), GREEDY_BELOW)
    bits = scaled.view(torch.int32)
    return scaled.masked_fill((bits ^ ((bits >> 31) & 0x7FFFFFFF)) < floors[:, None], float("-inf"))


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
    most_noise: tl.constexpr,
    chunk: tl.constexpr,
    block: tl.constexpr,
):
    """Grid (n, chunks). The highest value of a chunk and the lowest token that has it. No sum exceeds a block's highest
    value plus the most noise, so a block below the best so far needs no noise.
    """
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
            kept = (ordered(values) >= floor) & (tokens < vocabulary)
            values = tl.where(kept, values, float("-inf"))
            if sampled & (tl.max(values, 0) + most_noise >= best):
                values += noise_of(low, high, tokens)
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
