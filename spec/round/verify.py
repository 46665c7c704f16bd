"""One pass of the target over every node of every row, and the target's choice at each node.

The choice at a node of depth d uses the Gumbel noise of position n + d + 1, which its siblings share.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.contracts.step import Ints
from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.grammars.choice import hold_trees
from aerie.engine.grammars.masked import Trees
from aerie.engine.sampling.choose import choose
from aerie.engine.sampling.masks import Masks
from aerie.engine.step.batch import Layout, attention_inputs
from aerie.engine.step.state import DeviceState
from aerie.spec.round.extend import read_taps
from aerie.spec.round.stage import Staged
from aerie.spec.trees.ranking import RoundNoise
from aerie.spec.trees.tree import Tree


@dataclass(frozen=True, slots=True)
class Passed:
    """The pass over T nodes, flat, up to its logits."""

    tokens: Tensor
    """[T]"""
    words: Tensor | None
    """[T] ancestor words; None for chains."""
    depths: Tensor
    owners: Tensor
    """[T] table rows, as depths and positions."""
    positions: Tensor
    slots: Tensor
    logits: Tensor
    """[T, V] fp32"""
    taps: Tensor
    """[T, taps * target hidden]"""
    layout: Layout
    inputs: AttentionInputs


@dataclass(frozen=True, slots=True)
class Verified:
    """The pass, and the target's choices by row."""

    passed: Passed
    chosen: Tensor
    """[T] int64"""
    choices: Tensor
    """[R, M] the same by row; padding holds the choices of some real node."""
    missing: Tensor | None
    """[R, M] bool: nodes whose mask is missing, so that nothing after them counts; None without masks."""


def fetch_trees(state: DeviceState, tree: Tree) -> Trees | None:
    """Sends the step's trees to the host, if masks are made for them."""
    if state.masked is None or not state.masked.wanted:
        return None
    shape = tree.tokens.shape
    fetch = state.transfer.fetch(torch.stack([tree.tokens, tree.parent_nodes]).int().view(-1))

    def read() -> tuple[Ints, Ints]:
        tokens, parents = fetch().reshape(2, *shape)
        return tokens, parents

    return read


def run(state: DeviceState, staged: Staged, owners: Tensor, lengths: Tensor, tree: Tree, *, taps: bool) -> Passed:
    """Passes the staged nodes of `tree` over table rows `owners` [R] of true `lengths` [R]."""
    nodes, lay = staged.nodes, staged.nodes.layout
    tokens, depths, *words = nodes.pack(tree.tokens, tree.depths, *tree.masks)  # [T] each
    node_owners, prefixes = owners.index_select(0, lay.owners), lengths.index_select(0, lay.owners)  # [T]
    positions = prefixes + depths
    slots = state.tables.slots(node_owners, prefixes + lay.places)
    inputs = attention_inputs(state.tables, owners, lengths, staged.covers.verify, lay.indptr, *words)
    out = state.target.forward(tokens, positions, slots, inputs, None, taps=taps)
    return Passed(
        tokens=tokens,
        words=words[0] if words else None,
        depths=depths,
        owners=node_owners,
        positions=positions,
        slots=slots,
        logits=out.logits,
        taps=read_taps(out.taps, tokens),
        layout=lay,
        inputs=inputs,
    )


def choose_nodes(
    state: DeviceState, staged: Staged, passed: Passed, tree: Tree, noise: RoundNoise, masks: Masks | None = None
) -> Verified:
    """The target's choice at every node, by its grammar's mask."""
    nodes, lay, logits = staged.nodes, passed.layout, passed.logits
    path = _paths(tree.tokens, lay, passed.words) if staged.needs.edits else None
    chosen = state.kernels[choose](
        logits,
        passed.owners,
        passed.positions + 1,
        state.tables,
        staged.needs,
        noise=noise.at(lay.owners, passed.depths),
        path=path,
        allowed=None if masks is None else masks.allowed(logits.shape[1]),
    )

    def among(node: int, mask: Masks) -> Tensor:
        own = slice(node, node + 1)
        given = logits[own], passed.owners[own], passed.positions[own] + 1, state.tables, staged.needs
        own_path = None if path is None else path[own]
        return state.kernels[choose](*given, path=own_path, allowed=mask.allowed(logits.shape[1]))

    if state.guides is not None and state.masked is None:
        hold_trees(state.guides, chosen, lay.counts, tree.tokens, tree.parent_nodes, among)
    missing = None if masks is None else nodes.unpack(masks.missing)
    return Verified(passed, chosen, nodes.unpack(chosen), missing)


def _paths(tokens: Tensor, lay: Layout, words: Tensor | None = None) -> Tensor:
    """tokens [R, M], ancestor words [T] of trees -> [T, M] the drafted ids on each node's path, -1 elsewhere."""
    nodes = torch.arange(tokens.shape[1], device=tokens.device)  # [M]
    on_path = nodes <= lay.places[:, None] if words is None else (words[:, None] >> nodes & 1).bool()  # [T, M]
    return torch.where(on_path & (nodes > 0), tokens.index_select(0, lay.owners), -1)
