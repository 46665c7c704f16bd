"""Trees on a GPU, one program a row: selects nodes, and walks along the target's choices.

At most 64 nodes and some hundred candidates fit the registers of a block, so each of the two is one launch.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.spec.trees.accept import Accepted
from aerie.spec.trees.tree import Candidates, Tree


def select(candidates: Candidates, counts: Tensor, widest: int) -> Tree:
    rows, total = candidates.scores.shape
    tokens, depths, parents, words = torch.empty((4, rows, widest), dtype=torch.int64, device=counts.device).unbind()
    block = triton.next_power_of_2(widest)
    choose_nodes[(rows,)](
        tokens,
        depths,
        parents,
        words,
        candidates.tokens,
        candidates.scores,
        candidates.parents,
        candidates.depths,
        counts,
        total,
        widest,
        climbs=candidates.deepest.bit_length(),
        doublings=min(candidates.deepest, widest - 1).bit_length(),
        block=block,
        block_candidates=max(block, triton.next_power_of_2(total)),
    )
    return Tree(tokens, depths, parents, words)


@triton.jit
def choose_nodes(
    tokens,
    depths,
    parents,
    words,
    drafted,
    scores,
    drafted_parents,
    drafted_depths,
    counts,
    total,
    widest,
    climbs: tl.constexpr,
    doublings: tl.constexpr,
    block: tl.constexpr,
    block_candidates: tl.constexpr,
):
    """Grid (rows). Orders candidates by one integer each: score, then the smaller index. NaN and +inf count as -inf,
    and a score counts at most as much as its ancestors' scores.
    """
    row, each = tl.program_id(0).to(tl.int64), tl.arange(0, block_candidates)
    score = tl.load(scores + row * total + each, mask=each < total, other=0.0)
    score = tl.where(score < float("inf"), score, float("-inf"))
    above = tl.load(drafted_parents + row * total + each, mask=each < total, other=0).to(tl.int32)
    for _ in tl.static_range(climbs):
        score = tl.minimum(score, tl.gather(score, above, 0))
        above = tl.gather(above, above, 0)
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)  # -0 is 0
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) * 4294967296 + (0x7FFFFFFF - each)
    best = tl.topk(tl.where(each < total, order, -(2**63)), block)
    places, wanted = tl.arange(0, block), tl.load(counts + row)
    picked = tl.where(places < wanted, (0x7FFFFFFF - (best & 0x7FFFFFFF)).to(tl.int32), total)
    chosen = tl.sort(picked)
    real = row * total + tl.minimum(chosen, total - 1)
    parent = tl.load(drafted_parents + real)
    before = tl.sum((chosen[None, :] < parent[:, None]).to(tl.int32), 1)
    parent = tl.where(places < wanted, before, 0)
    target, inside = row * widest + places, places < widest
    depth = tl.load(drafted_depths + tl.minimum(chosen, total - 1))
    tl.store(tokens + target, tl.load(drafted + real), mask=inside)
    tl.store(depths + target, tl.where(places < wanted, depth, 0), mask=inside)
    tl.store(parents + target, parent.to(tl.int64), mask=inside)
    word = tl.full([block], 1, tl.int64) << places.to(tl.int64)
    for _ in tl.static_range(doublings):
        word = word | tl.gather(word, parent, 0)
        parent = tl.gather(parent, parent, 0)
    tl.store(words + target, word, mask=inside)


def accept(tree: Tree, choices: Tensor, nodes: Tensor, depth: int) -> Accepted:
    rows, widest = choices.shape
    counts = torch.empty(rows, dtype=torch.int64, device=choices.device)
    is_tree = tree.parents is not None and tree.words is not None
    path, tokens = torch.empty((2, rows, depth + 1 if is_tree else 0), dtype=torch.int64, device=choices.device)
    walk[(rows,)](
        counts,
        path,
        tokens,
        tree.tokens,
        tree.depths,
        tree.parents if is_tree else tree.tokens,
        tree.words if is_tree else tree.tokens,
        choices,
        nodes,
        tree.tokens.stride(0),
        widest,
        depth + 1,
        is_tree=is_tree,
        block=triton.next_power_of_2(widest),
        block_depths=triton.next_power_of_2(depth + 1),
        num_warps=1,
    )
    return Accepted(counts, tokens, path) if is_tree else Accepted(counts, choices, None)


@triton.jit
def walk(
    counts,
    path,
    path_tokens,
    tokens,
    depths,
    parents,
    words,
    choices,
    nodes,
    token_stride,
    widest,
    width,
    is_tree: tl.constexpr,
    block: tl.constexpr,
    block_depths: tl.constexpr,
):
    """Grid (rows)."""
    row, places = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    inside, own = places < tl.minimum(tl.load(nodes + row), widest), row * widest + places
    token = tl.load(tokens + row * token_stride + places, mask=inside, other=-1)
    if is_tree:
        parent = tl.load(parents + own, mask=inside, other=0)
        agreed = (token == tl.load(choices + row * widest + parent)) & inside
        agreed = agreed | (places == 0)
        bit = tl.full([block], 1, tl.int64) << places.to(tl.int64)
        missed = tl.sum(tl.where(agreed, 0, bit), 0)
        accepted = (places < widest) & ((tl.load(words + own, mask=places < widest, other=-1) & missed) == 0)
        tl.store(counts + row, tl.sum(accepted.to(tl.int64), 0) - 1)
        steps, depth = tl.arange(0, block_depths), tl.load(depths + own, mask=inside, other=-1)
        on_path = accepted[None, :] & (depth[None, :] == steps[:, None])
        node = tl.sum(tl.where(on_path, places[None, :], 0), 1).to(tl.int64)
        tl.store(path + row * width + steps, node, mask=steps < width)
        tl.store(path_tokens + row * width + steps, tl.load(choices + row * widest + node), mask=steps < width)
    else:
        before = tl.load(choices + own - 1, mask=inside & (places > 0), other=0)
        missed = (places > 0) & ((token != before) | ~inside)
        tl.store(counts + row, tl.min(tl.where(missed, places, widest), 0).to(tl.int64) - 1)
