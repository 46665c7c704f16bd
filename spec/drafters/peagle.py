"""A parallel head drafts all levels in one pass (P-EAGLE, arXiv 2602.01469): chains and best-first trees.

Level 1 is read off the seed, as in `draft`. Level d > 1 is read off mask slot d - 1, at slot and RoPE position n + d -
2. A mask slot holds the mask token and the mask hidden state in place of a token and a tap that do not exist yet. The
slots see the row's n pairs and each other causally, and are discarded when the step ends. So levels are independent
given the text: a node's children depend only on its depth. Called by `round`; verification is the same as for `draft`.
"""

import torch
from torch import Tensor

from aerie.engine.attention import planned_for
from aerie.engine.state.row_tables import RowTables
from aerie.engine.step.batch import attention_inputs
from aerie.spec.drafters.draft import Growth, Roots
from aerie.spec.heads.head import Head
from aerie.spec.trees.ranking import Ranking
from aerie.spec.trees.tree import Level, Tree, below, chain, joined, rooted, select


def draft_at_once(head: Head, tables: RowTables, roots: Roots, growth: Growth, ranking: Ranking) -> Tree:
    """Drafts trees for every row, as `draft` does. Any depth works, but the head is trained only up to some depth."""
    if growth.depth == 0:
        return chain(roots.tokens[:, None])
    logits = _levels(head, tables, roots, growth.depth)
    ranked = [ranking.rank(part, level) for level, part in enumerate(logits, 1)]
    if growth.topk == 1:
        drafted = [head.target_ids(z.argmax(-1)) for z in ranked]
        return chain(torch.stack([roots.tokens, *drafted], 1)[:, : growth.widest])
    found = _grow(head, ranked, roots.tokens, growth)
    return head.kernels[select](joined(found), growth.nodes, growth.widest)


def _levels(head: Head, tables: RowTables, roots: Roots, depth: int) -> list[Tensor]:
    """Head logits [R, Vd] of each level 1 .. depth, in one pass over depth - 1 mask slots a row."""
    first = head.read(roots.seeds).logits
    slots = depth - 1
    if not slots:
        return [first]
    assert head.mask is not None and head.config.mask_token is not None
    rows, device = roots.tokens.numel(), roots.tokens.device
    positions = (roots.lengths[:, None] + torch.arange(slots, device=device)).reshape(-1)
    owners = roots.owners[:, None].expand(rows, slots).reshape(-1)
    indptr = torch.arange(0, (rows + 1) * slots, slots, dtype=torch.int32)
    inputs = attention_inputs(tables, roots.owners, roots.lengths, roots.covered, indptr)
    output = head.forward(
        torch.full_like(positions, head.config.mask_token),
        head.mask.expand(rows * slots, -1),
        head.turns(positions),
        tables.slots(owners, positions),
        planned_for(head.attention, inputs),
    )
    return [first, *head.read(output).logits.view(rows, slots, -1).unbind(1)]


def _grow(head: Head, ranked: list[Tensor], roots: Tensor, growth: Growth) -> list[Level]:
    """Candidates of every level: the K best of a level below each kept node of the level before.

    A kept node costs no pass here, so as many are kept as a row can verify: none of the best `widest` nodes is missed.
    """
    topk, found = min(growth.topk, head.config.draft_vocabulary), [rooted(roots)]
    scores, indices, first = found[0].scores, found[0].parents, 1
    for level, values in enumerate(ranked, 1):
        z = values.float() / growth.edge_temperature(level)
        best, ids = z.topk(topk, -1)
        edges = best - z.logsumexp(-1, keepdim=True)
        shape = (len(edges), scores.shape[1], topk)
        found.append(
            Level(
                tokens=head.target_ids(ids)[:, None].expand(shape).flatten(1),
                scores=below(scores[:, :, None], edges[:, None]).flatten(1),
                parents=indices[:, :, None].expand(shape).flatten(1),
            )
        )
        kept = min(growth.widest - 1, found[-1].scores.shape[1])
        scores, indices = found[-1].scores.topk(kept, -1)
        indices, first = indices + first, first + found[-1].scores.shape[1]
    return found
