"""The thresholds of min-p, top-k and top-p, found by several programs a row.

Top-k keeps the values that fewer than k exceed, top-p those with less than p of the mass above them. Both are the
lowest threshold with less than a limit of weight above it, so one search finds both, four bits of an order-preserving
integer a launch: each program weighs its part of the vocabulary, and the next launch adds the parts up, in their order.
Nothing is sorted, and a row's answer depends on that row alone. Rows that do not filter leave at once. Rounds and rows
are no constants of a kernel, so each is compiled once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
CHUNK = 8 * _BLOCK
"""Tokens of a program."""
_ROUNDS = 8
"""Of four bits."""
LOWEST = -(2**31)


def find_floors(
    logits: Tensor, rows: Tensor, temperatures: Tensor, filters: tuple[Tensor, ...], greedy_below: float
) -> Tensor:
    """logits [n, V] of table rows [n]; min_p, top_k and top_p by table row -> [n] int32: the ordered integer below
    which tokens are filtered out.
    """
    min_ps, top_ks, top_ps = filters
    count, vocabulary = logits.shape
    chunks = triton.cdiv(vocabulary, CHUNK)
    device = logits.device
    floors = torch.full((count,), LOWEST, dtype=torch.int32, device=device)
    peaks, masses = torch.empty((2, count, chunks), dtype=torch.float32, device=device).unbind()
    sums = torch.empty((2, count, chunks, 16), dtype=torch.float32, device=device)
    prefixes = torch.empty((2, count), dtype=torch.int64, device=device)
    sizes = {"chunk": CHUNK, "block": _BLOCK, "greedy_below": greedy_below}
    parts = {"chunks": chunks, "block_chunks": triton.next_power_of_2(chunks)}
    find_peaks[(count, chunks)](peaks, logits, rows, temperatures, vocabulary, chunks, **sizes)
    start_floors[(count,)](floors, peaks, rows, temperatures, min_ps, greedy_below=greedy_below, **parts)
    search = (floors, sums, prefixes, masses, peaks, logits, rows, temperatures)
    for limits, by_mass in ((top_ks, False), (top_ps, True)):
        for level in range(_ROUNDS):
            weigh_parts[(count, chunks)](
                *search, limits, vocabulary, count, by_mass=by_mass, level=level, **parts, **sizes
            )
        raise_floors[(count,)](
            floors, sums, prefixes, masses, rows, temperatures, limits, count,
            by_mass=by_mass, level=_ROUNDS - 1, greedy_below=greedy_below, **parts,
        )  # fmt: skip
    return floors


@triton.jit
def ordered(values):
    """fp32 as int32 in the same order."""
    bits = values.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def find_peaks(
    peaks,
    logits,
    rows,
    temperatures,
    vocabulary,
    chunks,
    chunk: tl.constexpr,
    block: tl.constexpr,
    greedy_below: tl.constexpr,
):
    """Grid (n, chunks). The highest value of a chunk."""
    node, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + tl.load(rows + node))
    peak = tl.full([], float("-inf"), tl.float32)
    if temperature >= greedy_below:
        for start in range(part * chunk, tl.minimum(part * chunk + chunk, vocabulary), block):
            tokens = start + tl.arange(0, block)
            values = tl.load(logits + node * vocabulary + tokens, mask=tokens < vocabulary, other=float("-inf"))
            peak = tl.maximum(peak, tl.max(tl.div_rn(values, temperature), 0))
    tl.store(peaks + node * chunks + part, peak)


@triton.jit
def _peak(peaks, node, chunks, block_chunks: tl.constexpr):
    part = tl.arange(0, block_chunks)
    return tl.max(tl.load(peaks + node * chunks + part, mask=part < chunks, other=float("-inf")), 0)


@triton.jit
def start_floors(
    floors,
    peaks,
    rows,
    temperatures,
    min_ps,
    chunks,
    block_chunks: tl.constexpr,
    greedy_below: tl.constexpr,
):
    """Grid (n). The floor of min-p."""
    node = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + node)
    least = tl.load(min_ps + row)
    if (tl.load(temperatures + row) >= greedy_below) & (least > 0):
        tl.store(floors + node, ordered(_peak(peaks, node, chunks, block_chunks) + tl.log(tl.maximum(least, 1e-30))))


@triton.jit
def _limit(masses, limits, node, row, chunks, by_mass: tl.constexpr, block_chunks: tl.constexpr):
    """The weight that must lie above a value to filter it out; 0 or less where the row does not filter so."""
    limit = tl.load(limits + row).to(tl.float32)
    if by_mass:
        part = tl.arange(0, block_chunks)
        mass = tl.sum(tl.load(masses + node * chunks + part, mask=part < chunks, other=0.0), 0)
        limit = tl.where(limit < 1.0, limit * mass, 0.0)
    return limit


@triton.jit
def _step(level):
    """The distance of two thresholds of a round."""
    return tl.full([], 1, tl.int64) << (28 - 4 * level).to(tl.int64)


@triton.jit
def _found(sums, prefixes, node, chunks, count, limit, level, block_chunks: tl.constexpr):
    """The threshold's bits after round `level`."""
    digits, part = tl.arange(0, 16), tl.arange(0, block_chunks)
    own = sums + ((level % 2) * count + node) * chunks * 16
    weights = tl.load(own + part[:, None] * 16 + digits[None, :], mask=part[:, None] < chunks, other=0.0)
    passed = tl.sum((tl.sum(weights, 0) >= limit).to(tl.int64), 0)
    return tl.load(prefixes + (level % 2) * count + node) + passed * _step(level)


@triton.jit(do_not_specialize=["count", "level"])
def weigh_parts(
    floors,
    sums,
    prefixes,
    masses,
    peaks,
    logits,
    rows,
    temperatures,
    limits,
    vocabulary,
    count,
    chunks,
    level,
    by_mass: tl.constexpr,
    block_chunks: tl.constexpr,
    chunk: tl.constexpr,
    block: tl.constexpr,
    greedy_below: tl.constexpr,
):
    """Grid (n, chunks). The weight of a chunk above each of sixteen thresholds; in the first round its whole mass."""
    node, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(rows + node)
    temperature, asked = tl.load(temperatures + row), tl.load(limits + row).to(tl.float32)
    filters = (asked < 1.0) if by_mass else (asked > 0.0)
    if filters & (temperature >= greedy_below):
        found = tl.full([], -(2**31), tl.int64)
        if level > 0:
            limit = _limit(masses, limits, node, row, chunks, by_mass, block_chunks)
            found = _found(sums, prefixes, node, chunks, count, limit, level - 1, block_chunks)
        peak, floor = _peak(peaks, node, chunks, block_chunks), tl.load(floors + node)
        digits = tl.arange(0, 16)
        step = _step(level)
        tops = found + digits.to(tl.int64) * step + (step - 1)
        above, mass = tl.zeros([16], tl.float32), tl.zeros([], tl.float32)
        for start in range(part * chunk, tl.minimum(part * chunk + chunk, vocabulary), block):
            tokens = start + tl.arange(0, block)
            values = tl.load(logits + node * vocabulary + tokens, mask=tokens < vocabulary, other=float("-inf"))
            values = tl.div_rn(values, temperature)
            order = ordered(values)
            kept = (tokens < vocabulary) & (order >= floor)
            weight = tl.exp(values - peak) if by_mass else tl.full([block], 1.0, tl.float32)
            mass += tl.sum(tl.where(kept, weight, 0.0), 0)
            counted = kept[None, :] & (order.to(tl.int64)[None, :] > tops[:, None])  # [16, block]
            above += tl.sum(tl.where(counted, weight[None, :], 0.0), 1)
        tl.store(sums + (((level % 2) * count + node) * chunks + part) * 16 + digits, above)
        tl.store(prefixes + (level % 2) * count + node, found)  # every chunk's program stores the same
        if level == 0:
            tl.store(masses + node * chunks + part, mass)


@triton.jit(do_not_specialize=["count", "level"])
def raise_floors(
    floors,
    sums,
    prefixes,
    masses,
    rows,
    temperatures,
    limits,
    count,
    chunks,
    level,
    by_mass: tl.constexpr,
    block_chunks: tl.constexpr,
    greedy_below: tl.constexpr,
):
    """Grid (n). The floor after a search."""
    node = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + node)
    asked = tl.load(limits + row).to(tl.float32)
    filters = (asked < 1.0) if by_mass else (asked > 0.0)
    if filters & (tl.load(temperatures + row) >= greedy_below):
        limit = _limit(masses, limits, node, row, chunks, by_mass, block_chunks)
        found = _found(sums, prefixes, node, chunks, count, limit, level, block_chunks)
        tl.store(floors + node, tl.maximum(found.to(tl.int32), tl.load(floors + node)))
