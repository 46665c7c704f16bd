"""One round of a step that drafts, phase by phase, on the device's state; `worker` calls the phases in order and times
them.

open     the FutureMap's generation of each row, and the shape that the plan asks for
propose  noise and trees                     (draft or peagle, ranking, tree)
check    the target's choice at every node   (verify)
commit   path, cut, compaction               (accept, engine.ending)
follow   committed tokens into the head      (extend)
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from contracts.step import Ints, StepPlan
from engine.batch import attention_inputs, on_device
from engine.choose import Needs, token_logprobs
from engine.ending import Committed, cut
from engine.passes import Ranked
from engine.state import DeviceState
from spec.accept import Accepted, accept
from spec.draft import Growth, Roots, draft, scratch_slots
from spec.extend import Followed, Pairs, extend, followed
from spec.head import Head
from spec.head_config import HeadConfig
from spec.peagle import draft_at_once
from spec.ranking import ranking, step_noise
from spec.simulate import simulate
from spec.tree import Tree, usable_nodes, with_plain_rows
from spec.verify import Verified


@dataclass(frozen=True, slots=True)
class Opening:
    """Where a step's R rows stand, and what is drafted of them."""

    rows: Tensor
    turns: Tensor
    roots: Roots
    done: Tensor
    """[R] rows that ended before this step: they write to the dummy page and commit nothing."""
    nodes: Ints
    """[R] nodes to verify, root included; 1 in rows that the head does not follow."""
    depth: int
    topk: int
    drafting: Followed | None
    needs: Needs


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round committed."""

    accepted: Accepted
    committed: Committed
    lengths: Tensor
    """[R] true lengths after the round."""
    ranked: Ranked | None


def open_round(state: DeviceState, plan: StepPlan, head: HeadConfig) -> Opening:
    """A node has no more children than the head has ids."""
    work = plan.decode
    assert work is not None
    rows, turns = on_device(plan.rows, state.device), on_device(plan.turns, state.device)
    tokens, lengths, done, seeds = state.futures.read(turns, rows)
    topk = min(work.topk, head.draft_vocabulary)
    nodes = np.where(plan.drafting, usable_nodes(work.nodes, topk, work.depth), 1).astype(np.int32)
    depth = min(work.depth, int(nodes.max()) - 1)
    reach = max(int(nodes.max()), scratch_slots(topk, depth, parallel=head.parallel), depth + 1)
    return Opening(
        rows=rows,
        turns=turns,
        roots=Roots(
            owners=torch.where(done, state.tables.dummy_row, rows),
            lengths=lengths,
            tokens=tokens,
            seeds=seeds,
            covered=work.bounds + reach,
        ),
        done=done,
        nodes=nodes,
        depth=depth,
        topk=topk,
        drafting=followed(plan.drafting, state.device),
        needs=state.needs.of(plan.rows),
    )


def propose(
    state: DeviceState, head: Head, opening: Opening, *, sharpness: float, edge_temperatures: tuple[float, ...]
) -> tuple[Tree, Tensor | None]:
    """Trees of all rows, and the round's noise [R, depth + 1, V] unless every row is greedy."""
    roots, drafting = opening.roots, opening.drafting
    noise = None
    if opening.needs.noise:
        noise = step_noise(state.tables, roots.owners, roots.lengths, opening.depth, state.capacity.vocabulary)
    nodes, own_noise = opening.nodes, noise
    if drafting is not None:
        roots, nodes = _rows_of(roots, drafting), nodes[drafting.host]
        own_noise = None if noise is None else noise.index_select(0, drafting.device)
    rank = ranking(
        state.tables,
        roots.owners,
        opening.needs,
        noise=own_noise,
        mapping=head.weights.draft_to_target,
        sharpness=sharpness,
    )
    growth = Growth(opening.depth, opening.topk, nodes, edge_temperatures)
    tree = (draft_at_once if head.config.parallel else draft)(head, state.tables, roots, growth, rank)
    if drafting is not None:
        tree = with_plain_rows(tree, drafting.device, opening.roots.tokens)
    return tree, noise


def _rows_of(roots: Roots, picked: Followed) -> Roots:
    return Roots(
        owners=roots.owners.index_select(0, picked.device),
        lengths=roots.lengths.index_select(0, picked.device),
        tokens=roots.tokens.index_select(0, picked.device),
        seeds=roots.seeds.index_select(0, picked.device),
        covered=roots.covered[picked.host],
    )


def commit(
    state: DeviceState, opening: Opening, tree: Tree, verified: Verified, logprobs: int, *, simulated: float | None
) -> Outcome:
    """The accepted path, cut where the row ends; the target's KV of a tree's path moves to its final slots.

    `simulated` is spec.simulate_acceptance.
    """
    roots = opening.roots
    nodes = verified.layout.indptr.diff().to(state.device)
    if simulated is None:
        accepted = accept(tree, verified.choices, nodes, opening.depth)
    else:
        keys = state.tables.noise_keys[roots.owners]
        accepted = simulate(
            tree, verified.choices, nodes, opening.depth, length=simulated, keys=keys, positions=roots.lengths
        )
    committed = cut(accepted.tokens, accepted.counts + 1, roots.lengths + 1, opening.done, opening.rows, state.tables)
    if accepted.path is not None:
        compact(state, roots, accepted.path)
    ranked = None
    if logprobs >= 0:
        flat = _path_nodes(verified, accepted, nodes)
        own, ids, values = token_logprobs(
            verified.logits.index_select(0, flat.flatten()), accepted.tokens.flatten(), logprobs
        )
        ranked = own.view(flat.shape), ids.view(*flat.shape, logprobs), values.view(*flat.shape, logprobs)
    return Outcome(accepted, committed, roots.lengths + committed.counts, ranked)


def compact(state: DeviceState, roots: Roots, path: Tensor) -> None:
    """KV of path [R, W] to the slots right after each row's length.

    Past the accepted nodes what is moved is never read.
    """
    rows, width = path.shape
    owners = roots.owners[:, None].expand(rows, width - 1).reshape(-1)
    starts = roots.lengths[:, None]
    steps = torch.arange(1, width, device=path.device)
    source = state.tables.slots(owners, (starts + path[:, 1:]).reshape(-1))
    target = state.tables.slots(owners, (starts + steps).reshape(-1))
    state.target.pool.move(source, target)


def follow(state: DeviceState, head: Head, opening: Opening, verified: Verified, outcome: Outcome) -> Tensor:
    """Extends the committed tokens -> draft seeds [R, H].

    A chain that all rows drafted has the verifying pass's own layout.
    """
    assert verified.taps is not None
    lasts = (outcome.committed.counts - 1).clamp(min=0)
    if outcome.accepted.path is None and opening.drafting is None:
        pairs = Pairs(verified.chosen, verified.taps, verified.positions, verified.slots, verified.inputs)
        firsts = verified.layout.indptr[:-1].to(lasts.device)
        return extend(head, pairs).index_select(0, firsts + lasts)
    nodes = verified.layout.indptr.diff().to(state.device)
    flat, tokens, roots, picked = (
        _path_nodes(verified, outcome.accepted, nodes),
        outcome.accepted.tokens,
        opening.roots,
        opening.drafting,
    )
    if picked is not None:
        flat, tokens, lasts = (values.index_select(0, picked.device) for values in (flat, tokens, lasts))
        roots = _rows_of(roots, picked)
    rows, width = flat.shape
    places = torch.arange(width, device=lasts.device)
    positions = (roots.lengths[:, None] + places).reshape(-1)
    owners = roots.owners[:, None].expand(rows, width).reshape(-1)
    indptr = torch.arange(0, (rows + 1) * width, width, dtype=torch.int32)
    pairs = Pairs(
        tokens=tokens.reshape(-1),
        taps=verified.taps.index_select(0, flat.reshape(-1)),
        positions=positions,
        slots=state.tables.slots(owners, positions),
        inputs=attention_inputs(state.tables, roots.owners, roots.lengths, roots.covered, indptr),
    )
    seeds = extend(head, pairs).index_select(0, torch.arange(rows, device=lasts.device) * width + lasts)
    return seeds if picked is None else picked.spread(seeds, opening.nodes.size)


def _path_nodes(verified: Verified, accepted: Accepted, nodes: Tensor) -> Tensor:
    """[R, W] flat nodes of the pass along each row's path; entries past it are some node of the row."""
    path = accepted.path
    if path is None:
        path = torch.arange(accepted.tokens.shape[1], device=nodes.device)[None, :]
    firsts = verified.layout.indptr[:-1].to(nodes.device)
    return firsts[:, None] + torch.minimum(path, nodes[:, None] - 1)
