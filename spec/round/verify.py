"""One pass of the target over every node of every row, and the target's choice at each node.

Nodes are packed: a step's pass has exactly the sum of its rows' node counts. The choice at a node of depth d uses the
Gumbel noise of position n + d + 1, which its siblings share. Called by the worker between drafting and acceptance.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from aerie.contracts.step import Ints
from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.sampling.choose import Needs, choose
from aerie.engine.state.transfer import Transfer
from aerie.engine.step.batch import Layout, attention_inputs, layout
from aerie.engine.step.state import DeviceState
from aerie.spec.drafters.draft import Roots
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
    taps: Tensor | None
    layout: Layout
    positions: Tensor
    slots: Tensor
    inputs: AttentionInputs


@dataclass(frozen=True, slots=True)
class Nodes:
    """How the nodes of R rows lie in the pass."""

    layout: Layout
    padded: Tensor | None
    """[R, M] index of the flat node at each place, the row's last node in padding; None if every row has M nodes."""


def lay_nodes(counts: Ints, transfer: Transfer) -> Nodes:
    """Lays out the nodes of rows with counts [R]."""
    lay = layout(counts, transfer)
    if lay.uniform:
        return Nodes(lay, None)
    firsts = np.cumsum(counts) - counts
    return Nodes(lay, transfer.put(np.minimum(np.arange(lay.width), counts[:, None] - 1) + firsts[:, None]))


def verify(
    state: DeviceState,
    roots: Roots,
    tree: Tree,
    nodes: Nodes,
    needs: Needs,
    *,
    noise: Tensor | None,
    taps: bool,
) -> Verified:
    """Passes the `nodes` of `tree`. `noise` is `step_noise` of all rows, or None if drafting did not use it."""
    lay = nodes.layout
    flat = None if nodes.padded is None else lay.owners * lay.width + lay.places
    tokens, depths = _packed(tree.tokens, flat), _packed(tree.depths, flat)
    words = None if tree.words is None else _packed(tree.words, flat)
    owners, lengths = roots.owners.index_select(0, lay.owners), roots.lengths.index_select(0, lay.owners)
    positions = lengths + depths
    slots = state.tables.slots(owners, lengths + lay.places)
    inputs = attention_inputs(state.tables, roots.owners, roots.lengths, roots.covered, lay.indptr, words)
    out = state.target.forward(tokens, positions, slots, inputs, None, taps=taps)
    if noise is not None:
        noise = noise.flatten(0, 1).index_select(0, lay.owners * noise.shape[1] + depths)
    chosen = state.kernels[choose](out.logits, owners, positions + 1, state.tables, needs, noise=noise)
    return Verified(
        chosen=chosen,
        choices=chosen.view(lay.counts.size, -1) if nodes.padded is None else chosen[nodes.padded],
        logits=out.logits,
        taps=out.taps,
        layout=lay,
        positions=positions,
        slots=slots,
        inputs=inputs,
    )


def _packed(values: Tensor, flat: Tensor | None) -> Tensor:
    """[R, M] -> [T]"""
    values = values.reshape(-1)
    return values if flat is None else values.index_select(0, flat)
