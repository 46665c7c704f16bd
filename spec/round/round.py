"""One round of a step that drafts, phase by phase, on the device's state; `worker` calls the phases in order and times
them.

open     the FutureMap's generation of each row
propose  noise and trees                     (draft or peagle, ranking, tree)
check    the target's choice at every node   (verify)
commit   path, cut, compaction               (accept, engine.sampling.ending)
follow   extend the head with the tokens     (extend)
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aerie.contracts.spec_section import SpecConfig
from aerie.engine.sampling.choose import token_logprobs
from aerie.engine.sampling.ending import Committed, cut
from aerie.engine.step.batch import attention_inputs, uniform_layout
from aerie.engine.step.passes import Ranked, read_rows
from aerie.engine.step.results import Answer
from aerie.engine.step.state import DeviceState
from aerie.spec.drafters.confidence import confidence
from aerie.spec.drafters.draft import Growth, Roots, draft
from aerie.spec.drafters.peagle import draft_at_once
from aerie.spec.heads.head import Head
from aerie.spec.round.extend import Pairs, extend
from aerie.spec.round.simulate import simulate
from aerie.spec.round.stage import Part, Staged
from aerie.spec.round.verify import Verified
from aerie.spec.trees.accept import Accepted, accept
from aerie.spec.trees.ranking import ranking, step_noise
from aerie.spec.trees.tree import Tree, with_plain_rows


@dataclass(frozen=True, slots=True)
class Opening:
    """The state of a step's R rows before drafting."""

    staged: Staged
    roots: Roots
    done: Tensor
    """[R] rows that ended before this step: they write to the dummy page and commit nothing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round committed."""

    accepted: Accepted
    committed: Committed
    lengths: Tensor
    """[R] true lengths after the round."""
    ranked: Ranked | None


def open_round(state: DeviceState, staged: Staged) -> Opening:
    tokens, lengths, done, seeds = read_rows(state, staged.rows, staged.turns, staged.real)
    if staged.drafts is not None:  # rows without head KV have no seed, and their slots must stay finite
        seeds = torch.where(staged.drafts[:, None], seeds, 0)
    roots = Roots(
        owners=torch.where(done, state.tables.dummy_row, staged.rows),
        lengths=lengths,
        tokens=tokens,
        seeds=seeds,
        covered=staged.covers.draft,
    )
    return Opening(staged, roots, done)


def propose(state: DeviceState, head: Head, opening: Opening, spec: SpecConfig) -> tuple[Tree, Tensor | None]:
    """Trees of all rows, and the round's Gumbel noise [R, depth + 1, V] if drafting used it. With
    `spec.confidence_threshold`, chains may be shorter than staged.
    """
    roots, staged, part = opening.roots, opening.staged, opening.staged.part
    noise = None
    if staged.needs.noise and not math.isinf(spec.draft_temperature):
        noise = step_noise(
            state.kernels, state.tables, roots.owners, roots.lengths, staged.depth, state.capacity.vocabulary
        )
    counts, widest, own_noise = staged.counts, staged.nodes.layout.width, noise
    if part is not None:
        roots, counts, widest = _rows_of(roots, part), part.counts, part.widest
        own_noise = None if noise is None else noise.index_select(0, part.followed.device)
    rank = ranking(
        state.tables,
        roots.owners,
        staged.needs,
        noise=own_noise,
        mapping=head.weights.draft_to_target,
        sharpness=spec.draft_temperature,
        kernels=state.kernels,
    )
    doubt = confidence(state, spec.confidence_threshold, roots.owners)
    growth = Growth(staged.depth, staged.topk, counts, widest, spec.edge_temperatures, doubt)
    tree = (draft_at_once if head.config.parallel else draft)(head, state.tables, roots, growth, rank)
    if part is not None:
        tree = with_plain_rows(tree, part.followed.device, opening.roots.tokens)
    return tree, noise


def _rows_of(roots: Roots, part: Part) -> Roots:
    picked = part.followed.device
    return Roots(
        owners=roots.owners.index_select(0, picked),
        lengths=roots.lengths.index_select(0, picked),
        tokens=roots.tokens.index_select(0, picked),
        seeds=roots.seeds.index_select(0, picked),
        covered=part.cover,
    )


def commit(
    state: DeviceState, opening: Opening, tree: Tree, verified: Verified, logprobs: int, *, simulated: float | None
) -> Outcome:
    """Commits the accepted path, cut where the row ends; moves the target's KV of a tree's path to its final slots.

    `simulated` is spec.simulate_acceptance.
    """
    roots, nodes, depth = opening.roots, opening.staged.counts, opening.staged.depth
    if simulated is None:
        accepted = _agreed(state, state.kernels[accept](tree, verified.choices, nodes, depth))
    else:
        keys = state.tables.noise_keys[roots.owners]
        accepted = simulate(tree, verified.choices, nodes, depth, length=simulated, keys=keys, positions=roots.lengths)
    committed = state.kernels[cut](
        accepted.tokens, accepted.counts + 1, roots.lengths + 1, opening.done, opening.staged.rows, state.tables
    )
    if accepted.path is not None:
        state.kernels[compact](state, roots, accepted.path)
    ranked = None
    if logprobs >= 0:
        flat = _path_nodes(verified, accepted, nodes)
        own, ids, values = token_logprobs(
            verified.logits.index_select(0, flat.flatten()), accepted.tokens.flatten(), logprobs
        )
        ranked = own.view(flat.shape), ids.view(*flat.shape, logprobs), values.view(*flat.shape, logprobs)
    return Outcome(accepted, committed, roots.lengths + committed.counts, ranked)


def _agreed(state: DeviceState, accepted: Accepted) -> Accepted:
    """Rank 0's path and tokens on every rank, before any KV moves along them."""
    path = None if accepted.path is None else state.agree(accepted.path)
    return Accepted(state.agree(accepted.counts), state.agree(accepted.tokens), path)


def compact(state: DeviceState, roots: Roots, path: Tensor) -> None:
    """Moves the KV of path [R, W] to the slots right after each row's length.

    KV moved past the accepted nodes is never read.
    """
    rows, width = path.shape
    owners = roots.owners[:, None].expand(rows, width - 1).reshape(-1)
    starts = roots.lengths[:, None]
    steps = torch.arange(1, width, device=path.device)
    source = state.tables.slots(owners, (starts + path[:, 1:]).reshape(-1))
    target = state.tables.slots(owners, (starts + steps).reshape(-1))
    state.target.pool.move(source, target)


def follow(state: DeviceState, head: Head, opening: Opening, verified: Verified, outcome: Outcome) -> Tensor:
    """Extends the head with the committed tokens -> draft seeds [R, H].

    If all rows drafted chains, the layout is the verifying pass's.
    """
    assert verified.taps is not None
    staged, part = opening.staged, opening.staged.part
    lasts = (outcome.committed.counts - 1).clamp(min=0)
    inputs = replace(verified.inputs, held=staged.covers.extend.held)
    if outcome.accepted.path is None and part is None:
        pairs = Pairs(verified.chosen, verified.taps, verified.positions, verified.slots, inputs)
        return extend(head, pairs).index_select(0, verified.layout.firsts + lasts)
    flat, tokens = _path_nodes(verified, outcome.accepted, staged.counts), outcome.accepted.tokens
    roots, covered = opening.roots, staged.covers.extend
    if part is not None:
        flat, tokens, lasts = (values.index_select(0, part.followed.device) for values in (flat, tokens, lasts))
        roots, covered = _rows_of(roots, part), part.cover
    rows, width = flat.shape
    lay = uniform_layout(rows, width, lasts.device)
    positions = (roots.lengths[:, None] + lay.places.view(rows, width)).reshape(-1)
    owners = roots.owners.index_select(0, lay.owners)
    pairs = Pairs(
        tokens=tokens.reshape(-1),
        taps=verified.taps.index_select(0, flat.reshape(-1)),
        positions=positions,
        slots=state.tables.slots(owners, positions),
        inputs=attention_inputs(state.tables, roots.owners, roots.lengths, covered, lay.indptr),
    )
    seeds = extend(head, pairs).index_select(0, lay.firsts + lasts)
    return seeds if part is None else part.followed.spread(seeds, staged.counts.numel())


def _path_nodes(verified: Verified, accepted: Accepted, nodes: Tensor) -> Tensor:
    """[R, W] flat nodes of the pass along each row's path; entries past the path are some node of the row."""
    path = accepted.path
    if path is None:
        path = torch.arange(accepted.tokens.shape[1], device=nodes.device)[None, :]
    return verified.layout.firsts[:, None] + torch.minimum(path, nodes[:, None] - 1)


def publish_round(state: DeviceState, opening: Opening, outcome: Outcome, seeds: Tensor) -> None:
    """Writes the other FutureMap generation of every row."""
    lasts = (outcome.committed.counts - 1).clamp(min=0)
    state.futures.publish(
        1 - opening.staged.turns,
        opening.staged.rows,
        bonus=outcome.accepted.tokens.gather(1, lasts[:, None]).squeeze(1),
        lengths=outcome.lengths,
        done=opening.done | outcome.committed.done,
        seeds=seeds,
    )


def drafted_answer(opening: Opening, outcome: Outcome, tree: Tree | None) -> Answer:
    """The step's answer, with `tree` if it is given."""
    trees = None
    if tree is not None:
        trees = tree.tokens, (tree.depths - 1).clamp(min=0) if tree.parents is None else tree.parents
    return Answer(
        tokens=outcome.accepted.tokens,
        counts=outcome.committed.counts,
        lengths=outcome.lengths,
        endings=outcome.committed.endings,
        accepted=outcome.accepted.counts,
        drafted=torch.where(opening.done, 0, opening.staged.counts - 1),
        ranked=outcome.ranked,
        trees=trees,
    )
