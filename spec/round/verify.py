"""One pass of the target over every node of every row, and the target's choice at each node.

The choice at a node of depth d uses the Gumbel noise of position n + d + 1, which its siblings share.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.grammars.choice import hold_trees
from aerie.engine.sampling.choose import choose
from aerie.engine.step.batch import Layout, attention_inputs
from aerie.engine.step.state import DeviceState
from aerie.spec.round.extend import read_taps
from aerie.spec.round.stage import Staged
from aerie.spec.trees.ranking import RoundNoise
from aerie.spec.trees.tree import Tree


@dataclass(frozen=True, slots=True)
class Verified:
    """The pass over T nodes, flat, and its choices by row."""

    chosen: Tensor
    """[T] int64"""
    choices: Tensor
    """[R, M] the same by row; padding holds the choices of some real node."""
    logits: Tensor
    """[T, V] fp32"""
    taps: Tensor
    """[T, taps * target hidden]"""
    layout: Layout
    positions: Tensor
    """[T]"""
    slots: Tensor
    """[T]"""
    inputs: AttentionInputs


def verify(
    state: DeviceState,
    staged: Staged,
    owners: Tensor,
    lengths: Tensor,
    tree: Tree,
    noise: RoundNoise,
    *,
    taps: bool,
) -> Verified:
    """Passes the staged nodes of `tree` over table rows `owners` [R] of true `lengths` [R]."""
    nodes, lay = staged.nodes, staged.nodes.layout
    tokens, depths, *words = nodes.pack(tree.tokens, tree.depths, *tree.masks)  # [T] each
    node_owners, prefixes = owners.index_select(0, lay.owners), lengths.index_select(0, lay.owners)  # [T]
    positions = prefixes + depths
    slots = state.tables.slots(node_owners, prefixes + lay.places)
    inputs = attention_inputs(state.tables, owners, lengths, staged.covers.verify, lay.indptr, *words)
    out = state.target.forward(tokens, positions, slots, inputs, None, taps=taps)
    path = _paths(tree.tokens, lay, *words) if staged.needs.edits else None
    chosen = state.kernels[choose](
        out.logits,
        node_owners,
        positions + 1,
        state.tables,
        staged.needs,
        noise=noise.at(lay.owners, depths),
        path=path,
    )

    def among(node: int, allowed: Tensor) -> Tensor:
        own = slice(node, node + 1)
        given = out.logits[own], node_owners[own], positions[own] + 1, state.tables, staged.needs
        return state.kernels[choose](*given, path=None if path is None else path[own], allowed=allowed)

    if state.guides is not None:
        hold_trees(state.guides, chosen, lay.counts, tree.tokens, tree.parent_nodes, among)
    return Verified(
        chosen=chosen,
        choices=nodes.unpack(chosen),
        logits=out.logits,
        taps=read_taps(out.taps, tokens),
        layout=lay,
        positions=positions,
        slots=slots,
        inputs=inputs,
    )


def _paths(tokens: Tensor, lay: Layout, words: Tensor | None = None) -> Tensor:
    """tokens [R, M], ancestor words [T] of trees -> [T, M] the drafted ids on each node's path, -1 elsewhere."""
    nodes = torch.arange(tokens.shape[1], device=tokens.device)  # [M]
    on_path = nodes <= lay.places[:, None] if words is None else (words[:, None] >> nodes & 1).bool()  # [T, M]
    return torch.where(on_path & (nodes > 0), tokens.index_select(0, lay.owners), -1)
