"""A round: what a step that drafts does on the device, phase by phase.

open     reads each row's generation of the FutureMap
draft    the drafter's trees, ranked by the round's noise     (spec.drafters, spec.trees)
run      the target's pass over every node                    (verify)
choose   the target's choice at every node                    (verify)
accept   the path that the target chose, cut where a row ends (acceptance, compact)
extend   the drafter takes in the committed tokens            (extend)
publish  writes the other generation of every row
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aerie.contracts.spec_section import SpecConfig
from aerie.engine.sampling.choose import choose
from aerie.engine.sampling.ending import Committed, cut
from aerie.engine.sampling.masks import Masks
from aerie.engine.step.batch import attention_inputs, uniform_layout
from aerie.engine.step.state import DeviceState
from aerie.spec.drafters.confidence import confidence_floor, on_host
from aerie.spec.drafters.drafter import Drafter, Growth, Pairs, Roots
from aerie.spec.round.acceptance import acceptance_of
from aerie.spec.round.compact import compact
from aerie.spec.round.stage import Staged, cut_short
from aerie.spec.round.verify import Passed, Verified, choose_nodes, run
from aerie.spec.trees.accept import Accepted
from aerie.spec.trees.ranking import RoundNoise, ranking, step_noise
from aerie.spec.trees.tree import Tree, begun_with

NO_TOKEN = -1
"""What nothing chooses."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The state of a step's R rows before drafting."""

    staged: Staged
    owners: Tensor
    """[R] table rows; the dummy row for rows that have ended."""
    lengths: Tensor
    """[R] true lengths."""
    tokens: Tensor
    """[R] the roots: each row's last committed token."""
    done: Tensor
    """[R] rows that ended before this step: they write to the dummy page and commit nothing."""
    seeds: Tensor
    """[R, H] draft seeds."""
    roots: Roots
    """The r rows that draft."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """Trees of all R rows. Chains may be shorter than staged, each by `spec.confidence_threshold`."""

    tree: Tree
    noise: RoundNoise


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round committed."""

    accepted: Accepted
    committed: Committed
    lengths: Tensor
    """[R] true lengths after the round."""
    late: Tensor | None
    """[R] bool: rows that commit nothing and stay as they are, since their mask is missing; None without masks."""

    @property
    def lasts(self) -> Tensor:
        """[R] index of the last committed token in `accepted.tokens`; 0 in rows that committed nothing."""
        return (self.committed.counts - 1).clamp(min=0)


class Round:
    """The phases, on the state of one worker. Nothing here waits for the device."""

    def __init__(self, state: DeviceState, drafter: Drafter, spec: SpecConfig) -> None:
        self.state = state
        self.drafter = drafter
        self.spec = spec
        self._acceptance = acceptance_of(spec)
        self._confidence_floor = confidence_floor(spec.confidence_threshold, visible=state.visible)

    def open(self, staged: Staged) -> Opened:
        tokens, lengths, done, seeds = staged.rows.read(self.state)  # [R], [R], [R], [R, H]
        owners = torch.where(done, self.state.tables.dummy_row, staged.rows.rows)  # [R]
        pick = staged.drafting.pick
        roots = Roots(pick(owners), pick(lengths), pick(tokens), pick(seeds), staged.covers.draft)
        return Opened(staged, owners, lengths, tokens, done, seeds, roots)

    def draft(self, opened: Opened) -> Drafted:
        state, spec, staged, roots = self.state, self.spec, opened.staged, opened.roots
        noise = self._noise(opened)
        rank = ranking(
            state.tables,
            roots.owners,
            staged.needs,
            noise=noise.of(staged.drafting.pick, self.drafter.draft_to_target),
            sharpness=spec.draft_temperature,
            kernels=state.kernels,
        )
        growth = Growth(
            staged.depth,
            staged.topk,
            staged.drafting_counts,
            staged.widest,
            spec.edge_temperatures,
            self._confidence_floor,
            staged.forced,
        )
        tree = self.drafter.draft(state.tables, roots, growth, rank)
        if staged.forced is not None:  # not every drafter goes on after such tokens
            tree = begun_with(tree, staged.forced)
        return Drafted(staged.drafting.spread_tree(tree, opened.tokens), noise)

    def _noise(self, opened: Opened) -> RoundNoise:
        """Of all rows and tokens, so that verification need not make it again; of the head's tokens alone where the
        kernel that chooses makes noise faster than it reads it.
        """
        state, staged = self.state, opened.staged
        if not staged.needs.noise or math.isinf(self.spec.draft_temperature):
            return RoundNoise(None)
        drafted = state.kernels.language == "triton" and state.kernels[choose] is not choose
        tokens = self.drafter.draft_to_target if drafted else None
        if tokens is None:
            tokens = torch.arange(state.capacity.vocabulary, device=state.device)
        made = step_noise(state.kernels, state.tables, opened.owners, opened.lengths, staged.depth, tokens)
        return RoundNoise(made, drafted)

    def cut_short(self, opened: Opened, drafted: Drafted) -> Opened:
        """The round of chains that ended early."""
        tree = drafted.tree
        counts = tree.tokens.shape[1] if tree.counts is None else on_host(tree.counts)
        return replace(opened, staged=cut_short(self.state, opened.staged, counts))

    def run(self, opened: Opened, drafted: Drafted) -> Passed:
        taps = bool(self.drafter.needs.taps)
        return run(self.state, opened.staged, opened.owners, opened.lengths, drafted.tree, taps=taps)

    def choose(self, opened: Opened, drafted: Drafted, passed: Passed, masks: Masks | None) -> Verified:
        return choose_nodes(self.state, opened.staged, passed, drafted.tree, drafted.noise, masks)

    def accept(self, opened: Opened, drafted: Drafted, verified: Verified) -> Outcome:
        """Commits the accepted path, cut where the row ends; moves the target's KV of a tree's path to its final
        slots.
        """
        state, staged, tree, closed, late = self.state, opened.staged, drafted.tree, opened.done, None
        if verified.missing is not None:  # such nodes count as not drafted, and a row of such a root waits
            late = verified.missing[:, 0]
            tree = replace(tree, tokens=tree.tokens.masked_fill(verified.missing, NO_TOKEN))
            closed = closed | late
        accepted = self._acceptance(state, staged, opened.owners, opened.lengths, tree, verified.choices)
        committed = state.kernels[cut](
            accepted.tokens, accepted.counts + 1, opened.lengths + 1, closed, staged.rows.rows, state.tables
        )
        if staged.needs.edits:
            state.tables.edits.count(staged.rows.rows, accepted.tokens, committed.counts)
        if not accepted.is_chain:
            state.kernels[compact](state, opened.owners, opened.lengths, accepted.nodes)
        return Outcome(accepted, committed, opened.lengths + committed.counts, late)

    def extend(self, opened: Opened, verified: Verified, outcome: Outcome) -> Tensor:
        """Extends the drafter with the committed tokens -> draft seeds [R, H], zero in rows that do not draft."""
        drafting = opened.staged.drafting
        pairs_of = self._all_pairs if drafting.every and outcome.accepted.is_chain else self._path_pairs
        pairs = pairs_of(opened, verified, outcome)
        return drafting.spread(self.drafter.extend(pairs), opened.lengths.numel())

    def _all_pairs(self, opened: Opened, verified: Verified, outcome: Outcome) -> Pairs:
        """A pair for every node of the verifying pass, in its layout: all rows drafted chains."""
        passed = verified.passed
        inputs = replace(passed.inputs, held=opened.staged.covers.extend.held)
        lasts = passed.layout.firsts + outcome.lasts
        return Pairs(verified.chosen, passed.taps, passed.positions, passed.slots, inputs, lasts)

    def _path_pairs(self, opened: Opened, verified: Verified, outcome: Outcome) -> Pairs:
        """A pair for every node of the drafting rows' paths, W a row."""
        tables, staged, roots, pick = self.state.tables, opened.staged, opened.roots, opened.staged.drafting.pick
        flat = pick(path_nodes(opened, verified, outcome))  # [r, W]
        tokens, lasts = pick(outcome.accepted.tokens), pick(outcome.lasts)  # [r, W], [r]
        rows, width = flat.shape
        lay = uniform_layout(rows, width, lasts.device)
        positions = (roots.lengths[:, None] + lay.places.view(rows, width)).reshape(-1)  # [r * W]
        owners = roots.owners.index_select(0, lay.owners)  # [r * W]
        return Pairs(
            tokens=tokens.reshape(-1),
            taps=verified.passed.taps.index_select(0, flat.reshape(-1)),
            positions=positions,
            slots=tables.slots(owners, positions),
            inputs=attention_inputs(tables, roots.owners, roots.lengths, staged.covers.extend, lay.indptr),
            lasts=lay.firsts + lasts,
        )

    def publish(self, opened: Opened, outcome: Outcome, seeds: Tensor) -> None:
        rows, late = opened.staged.rows, outcome.late
        bonus = outcome.accepted.tokens.gather(1, outcome.lasts[:, None]).squeeze(1)
        if late is not None:
            bonus, seeds = torch.where(late, opened.tokens, bonus), torch.where(late[:, None], opened.seeds, seeds)
        self.state.futures.publish(
            1 - rows.generations,
            rows.rows,
            bonus=bonus,
            lengths=outcome.lengths,
            done=opened.done | outcome.committed.done,
            seeds=seeds,
        )


def path_nodes(opened: Opened, verified: Verified, outcome: Outcome) -> Tensor:
    """[R, W] flat nodes of the pass along each row's path; entries past the path are some node of the row."""
    counts = opened.staged.counts[:, None]
    return verified.passed.layout.firsts[:, None] + outcome.accepted.nodes.minimum(counts - 1)
