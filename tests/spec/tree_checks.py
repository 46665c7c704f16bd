"""What kernels of trees must do, in whatever language: the nodes chosen, the path walked and the KV moved are those of
the twins in torch.
"""

from types import SimpleNamespace
from typing import Any

import torch

from engine.kv_pool import KVPool
from engine.row_tables import RowTables
from spec.accept import accept
from spec.draft import Roots
from spec.round import compact
from spec.tree import Candidates, Level, Tree, chain, joined, rooted, select


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


def check_the_same_nodes(language: str, topk: int, depth: int, *, ties: bool, device: str = "cpu") -> None:
    candidates = drafted(4, topk, depth, ties=ties, device=device)
    total = candidates.scores.shape[1]
    widest = min(total, 64, 13 if topk == 3 else 64)
    counts = torch.tensor([widest, 1, min(7, widest), min(2, widest)], device=device)
    ours, twin = select.kernel(language)(candidates, counts, widest), select.twin(candidates, counts, widest)
    for name in ("tokens", "depths", "parents", "words"):
        assert torch.equal(getattr(ours, name), getattr(twin, name)), name


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


def check_the_same_path(language: str, topk: int, depth: int, *, device: str = "cpu") -> None:
    candidates = drafted(4, topk, depth, ties=False, device=device)
    widest = min(candidates.scores.shape[1], 64)
    counts = torch.tensor([widest, widest - 1, widest, 1], device=device)
    tree = select.twin(candidates, counts, widest)
    choices = guessed(tree)
    ours, twin = accept.kernel(language)(tree, choices, counts, depth), accept.twin(tree, choices, counts, depth)
    assert twin.counts.max() > 1 and twin.counts.min() == 0
    assert ours.path is not None and twin.path is not None
    assert torch.equal(ours.counts, twin.counts)
    assert torch.equal(ours.path, twin.path) and torch.equal(ours.tokens, twin.tokens)


def check_the_same_part_of_a_chain(language: str, width: int, *, device: str = "cpu") -> None:
    torch.manual_seed(width)
    tree = chain(torch.randint(0, 2, (18, width + 3), device=device)[:, :width])
    choices = torch.randint(0, 2, (18, width), device=device)
    choices[:9, :-1] = tree.tokens[:9, 1:]
    nodes = torch.randint(1, width + 1, (18,), device=device)
    nodes[:5] = width
    ours, twin = accept.kernel(language)(tree, choices, nodes, width - 1), accept.twin(tree, choices, nodes, width - 1)
    assert ours.path is None and twin.counts.max() == width - 1
    assert torch.equal(ours.counts, twin.counts) and torch.equal(ours.tokens, twin.tokens)


def check_a_path_s_kv_is_moved(
    language: str, page: int, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
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
    for move in (compact.kernel(language), compact.twin):
        pool = KVPool(layers=2, pages=pages + 1, page_size=page, kv_heads=3, head_dim=40, dtype=dtype, device=device)
        pool.keys.copy_(torch.arange(pool.keys.numel(), device=device).view(pool.keys.shape).remainder(251))
        pool.values.copy_(-pool.keys)
        state: Any = SimpleNamespace(target=SimpleNamespace(pool=pool), tables=tables)
        seeds = torch.zeros(3, 1, device=device)
        covered: Any = None
        move(state, Roots(torch.arange(3, device=device), lengths, lengths, seeds, covered), path)
        both = torch.stack((pool.keys, pool.values))
        both[:, :, past] = 0
        moved.append(both)
    assert torch.equal(*moved)
