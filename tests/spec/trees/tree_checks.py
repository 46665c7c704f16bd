"""What kernels of trees must do, in whatever language: the nodes chosen, the path walked and the KV moved are those of
the references in torch.
"""

import math
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import strategies as st

from aerie.engine.bindings import Kernels
from aerie.engine.state.kv_pool import KVPool
from aerie.engine.state.row_tables import RowTables
from aerie.spec.round.compact import compact
from aerie.spec.trees.accept import accept
from aerie.spec.trees.tree import Candidates, Level, Tree, chain, joined, rooted, select
from tests.spec.oracle import brute_force_words


def drafted(rows: int, topk: int, depth: int, *, ties: bool, device: str = "cpu") -> Candidates:
    """Candidates as drafting scores them: no child above its parent, with equal scores where `ties`."""
    torch.manual_seed(topk + depth)
    levels = [rooted(torch.randint(0, 50, (rows,), device=device))]
    first = 0
    for level in range(1, depth + 1):
        before = levels[-1]
        nodes = 1 if level == 1 else topk
        picked = before.scores.topk(nodes, -1)
        edges = torch.rand(rows, nodes, topk, device=device)
        edges = (edges * 3).floor() if ties else edges
        parents = (picked.indices + first)[:, :, None].expand(rows, nodes, topk)
        scores = (picked.values[:, :, None] - edges).flatten(1)
        tokens = torch.rand(rows, nodes, 50, device=device).topk(topk, -1).indices.flatten(1)  # siblings differ
        first += before.tokens.shape[1]
        levels.append(Level(tokens, scores, parents.reshape(rows, -1)))
    return joined(levels)


def check_the_same_nodes(kernels: Kernels, topk: int, depth: int, *, ties: bool, device: str = "cpu") -> None:
    candidates = drafted(4, topk, depth, ties=ties, device=device)
    total = candidates.scores.shape[1]
    widest = min(total, 64, 13 if topk == 3 else 64)
    counts = torch.tensor([widest, 1, min(7, widest), min(2, widest)], device=device)
    ours, reference = kernels[select](candidates, counts, widest), select(candidates, counts, widest)
    for name in ("tokens", "depths", "parents", "words"):
        assert torch.equal(getattr(ours, name), getattr(reference, name)), name


_SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-40, -3e38, -1.0, 2.0])


def any_bits(shape: tuple[int, ...], special: float = 0.0) -> torch.Tensor:
    """fp32 of every bit pattern, drawn from torch's generator; a share of them from the awkward ones."""
    values = torch.randint(-(2**31), 2**31, shape).int().view(torch.float32)
    return torch.where(torch.rand(shape) < special, _SPECIAL[torch.randint(0, len(_SPECIAL), shape)], values)


@st.composite
def any_candidates(draw: st.DrawFn) -> Candidates:
    """Trees of any shape whose scores are anything at all: NaN, infinite, denormal, equal, above their parent's."""
    topk, depth, rows = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    torch.manual_seed(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["bits", "special", "mixed", "equal", "one is broken"]))
    widths = [1, *[topk if level == 1 else topk * topk for level in range(1, depth + 1)]]
    firsts = [sum(widths[:level]) for level in range(depth + 1)]
    parents = [torch.zeros(rows, 1).long()]
    for level in range(1, depth + 1):
        chosen = torch.stack([torch.randperm(widths[level - 1])[:topk] for _ in range(rows)]) + firsts[level - 1]
        parents.append(chosen.repeat_interleave(widths[level] // chosen.shape[1], 1))
    total = sum(widths)
    scores = {"bits": 0.0, "special": 1.0, "mixed": 0.3}.get(kind)
    values = torch.zeros(rows, total) if scores is None else any_bits((rows, total), scores)
    if kind == "one is broken":
        values = -torch.rand(rows, total).cumsum(1)
        values[:, draw(st.integers(0, total - 1))] = math.nan
    depths = torch.repeat_interleave(torch.arange(depth + 1), torch.tensor(widths))
    return Candidates(torch.arange(rows * total).view(rows, total), values, torch.cat(parents, 1), depths, depth)


def sound_best(candidates: Candidates, row: int, count: int) -> list[int]:
    """By hand: the best `count` candidates of a row, a score being the least on the way from the root, if a number."""
    scores: list[float] = []
    for score, parent in zip(candidates.scores[row].tolist(), candidates.parents[row].tolist(), strict=True):
        own = score if score < math.inf else -math.inf
        scores.append(min(own, scores[parent]) if scores else own)
    return sorted(sorted(range(len(scores)), key=lambda one: (-scores[one], one))[:count])


def check_nodes_of_any_scores(kernels: Kernels, candidates: Candidates, *, device: str = "cpu") -> None:
    """Every implementation chooses the same nodes, with the parents that they were drafted from."""
    rows, total = candidates.scores.shape
    widest = min(total, 64)
    counts = torch.arange(rows) * 5 % widest + 1
    there = Candidates(
        *(part.to(device) for part in (candidates.tokens, candidates.scores, candidates.parents, candidates.depths)),
        candidates.deepest,
    )
    tree = kernels[select](there, counts.to(device), widest)
    assert tree.parents is not None and tree.words is not None
    for row, count in enumerate(counts.tolist()):
        best = sound_best(candidates, row, count)
        parents = [best.index(parent) for parent in candidates.parents[row, best].tolist()]
        assert (tree.tokens[row, :count] - row * total).tolist() == best
        assert tree.parents[row, :count].tolist() == parents
        assert tree.depths[row, :count].tolist() == candidates.depths[best].tolist()
        assert tree.words[row, :count].tolist() == brute_force_words(parents)


def guessed(tree: Tree) -> torch.Tensor:
    """Choices that agree with the drafts along some path of each row, and often beside it."""
    assert tree.parents is not None
    choices = torch.randint(0, 50, tree.tokens.shape, device=tree.tokens.device)
    for row, leaf in enumerate((3, 1, tree.tokens.shape[1] - 1, 0)):
        node = min(leaf, tree.tokens.shape[1] - 1)
        while node:
            choices[row, tree.parents[row, node]] = tree.tokens[row, node]
            node = int(tree.parents[row, node])
    return choices


def check_the_same_path(kernels: Kernels, topk: int, depth: int, *, device: str = "cpu") -> None:
    candidates = drafted(4, topk, depth, ties=False, device=device)
    widest = min(candidates.scores.shape[1], 64)
    counts = torch.tensor([widest, widest - 1, widest, 1], device=device)
    tree = select(candidates, counts, widest)
    choices = guessed(tree)
    ours, reference = kernels[accept](tree, choices, counts, depth), accept(tree, choices, counts, depth)
    assert reference.counts.max() > 1 and reference.counts.min() == 0
    assert ours.path is not None and reference.path is not None
    assert torch.equal(ours.counts, reference.counts)
    assert torch.equal(ours.path, reference.path) and torch.equal(ours.tokens, reference.tokens)


def check_the_same_part_of_a_chain(kernels: Kernels, width: int, *, device: str = "cpu") -> None:
    torch.manual_seed(width)
    tree = chain(torch.randint(0, 2, (18, width + 3), device=device)[:, :width])
    choices = torch.randint(0, 2, (18, width), device=device)
    choices[:9, :-1] = tree.tokens[:9, 1:]
    nodes = torch.randint(1, width + 1, (18,), device=device)
    nodes[:5] = width
    ours, reference = kernels[accept](tree, choices, nodes, width - 1), accept(tree, choices, nodes, width - 1)
    assert ours.path is None and reference.counts.max() == width - 1
    assert torch.equal(ours.counts, reference.counts) and torch.equal(ours.tokens, reference.tokens)


def check_a_path_s_kv_is_moved(
    kernels: Kernels, page: int, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> None:
    """What the places past a path's end hold is nobody's."""
    torch.manual_seed(page)
    path = torch.tensor([[0, 2, 5, 7], [0, 1, 2, 3], [0, 4, 0, 0]], device=device)
    lengths = torch.tensor([14, 3, 0], device=device)
    tables = RowTables(3, 32, page, device)
    pages = 96 // page
    tables.pages[:3, : pages // 3] = 1 + torch.randperm(pages // 3 * 3, device=device).view(3, -1).int()[:, :32]
    past = tables.slots(torch.tensor([2, 2], device=device), torch.tensor([2, 3], device=device))
    moved: list[torch.Tensor] = []
    for move in (kernels[compact], compact):
        pool = KVPool(layers=2, pages=pages + 1, page_size=page, kv_heads=3, head_dim=40, dtype=dtype, device=device)
        pool.keys.copy_(torch.arange(pool.keys.numel(), device=device).view(pool.keys.shape).remainder(251))
        pool.values.copy_(-pool.keys)
        state: Any = SimpleNamespace(target=SimpleNamespace(pool=pool), tables=tables)
        move(state, torch.arange(3, device=device), lengths, path)
        both = torch.stack((pool.keys, pool.values))
        both[:, :, past] = 0
        moved.append(both)
    assert torch.equal(*moved)
