"""How the rows of a step rank the head's proposals: z = (a / T) log q + g, where g is the target's own Gumbel noise.

Drafters ask for z level by level. A child drafted by this rule is the target's choice more often than the likeliest
child is (seed coupling, after Daliri et al. 2408.07978). `a` weighs the head against the noise; infinite, it drafts
without noise. Greedy rows rank by log q. Request filters (top-k, top-p, min-p) cut q's support as they cut the
target's; min_tokens is left to the target.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.contracts.sampling import COLUMNS, GREEDY_BELOW
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.sampling.choose import FILTER_COLUMNS, Needs, filtered
from aerie.engine.sampling.noise import gumbel
from aerie.engine.state.row_tables import RowTables


def step_noise(
    kernels: Kernels, tables: RowTables, rows: Tensor, lengths: Tensor, depth: int, tokens: Tensor
) -> Tensor:
    """Noise [R, depth + 1, n] of positions length + 1 .. length + depth + 1 and tokens [n]. Siblings share it."""
    positions = lengths[:, None] + torch.arange(1, depth + 2, device=lengths.device)  # [R, depth + 1]
    keys = tables.noise_keys[rows][:, None].expand_as(positions)  # as positions
    return kernels[gumbel](keys.reshape(-1), positions.reshape(-1), tokens).view(*positions.shape, tokens.numel())


@dataclass(frozen=True, slots=True)
class RoundNoise:
    """The noise of a round's R rows: that of `step_noise`, or nothing if drafting does not use it."""

    values: Tensor | None
    """[R, depth + 1, V], or [R, depth + 1, Vd] if it is `drafted`."""
    drafted: bool = False
    """Of the head's ids alone: verification makes its own while it chooses."""

    def of(self, pick: Callable[[Tensor], Tensor], mapping: Tensor | None) -> Tensor | None:
        """[r, depth, Vd]: the noise of the rows that `pick` picks, for the head's ids, which `mapping` maps."""
        if self.values is None:
            return None
        taken = pick(self.values)[:, :-1]
        return taken if mapping is None or self.drafted else taken.index_select(2, mapping)

    def at(self, rows: Tensor, depths: Tensor) -> Tensor | None:
        """[T, V]: the noise by which rows [T] choose what comes after nodes of depths [T]; None if they make it."""
        if self.values is None or self.drafted:
            return None
        return self.values.flatten(0, 1).index_select(0, rows * self.values.shape[1] + depths)


def log_likelihood(logits: Tensor, ids: Tensor, temperatures: Tensor | None) -> Tensor:
    """Log probabilities [R] of draft ids [R], from the head's logits [R, Vd] at temperatures [R, 1]; None means 1."""
    if temperatures is not None:
        logits = logits.float() / temperatures
    return logits.gather(1, ids[:, None]).squeeze(1) - logits.logsumexp(-1)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The ranking of R rows. Without noise every row is greedy, and the other fields are None."""

    noise: Tensor | None
    """[R, D, Vd], zero in greedy rows."""
    sharpness: Tensor | None
    """[R, 1]: a, or 1 in greedy rows."""
    temperatures: Tensor | None
    """[R, 1], 1 in greedy rows."""
    filters: tuple[Tensor, ...] | None
    """[R] each, as `filtered` takes them; neutral in greedy rows."""
    kernels: Kernels = REFERENCES

    def rank(self, logits: Tensor, level: int) -> Tensor:
        """Head logits [R * n, Vd] of n nodes a row -> z for children at depth `level`, equal in order and softmax."""
        if self.temperatures is None or self.sharpness is None:
            return logits
        rows = self.temperatures.shape[0]
        each = logits.shape[0] // rows
        scaled = logits.float().view(rows, each, -1)  # [R, n, Vd]
        if self.filters is None:
            scaled = scaled * (self.sharpness / self.temperatures)[:, None]
        else:
            filters = (values[:, None].expand(-1, each).reshape(-1) for values in self.filters)
            support = self.kernels[filtered]((scaled / self.temperatures[:, None]).flatten(0, 1), *filters)
            scaled = support.view_as(scaled) * self.sharpness[:, None]
        if self.noise is not None:
            scaled = scaled + self.noise[:, level - 1, None]
        return scaled.flatten(0, 1)


def ranking(
    tables: RowTables,
    rows: Tensor,
    needs: Needs,
    *,
    noise: Tensor | None,
    sharpness: float,
    kernels: Kernels = REFERENCES,
) -> Ranking:
    """The ranking of table rows [R]. `noise` [R, depth, Vd] is the round's if rows sample and `sharpness` is finite."""
    if not needs.noise:
        return Ranking(None, None, None, None)
    temperatures = tables.sampling["temperature"][rows][:, None]  # [R, 1]
    sampled = temperatures >= GREEDY_BELOW
    filters = None
    if needs.filters:
        keep = sampled[:, 0]  # [R], as each of the filters
        filters = tuple(
            torch.where(keep, tables.sampling[name][rows], COLUMNS[name].neutral) for name in FILTER_COLUMNS
        )
    if math.isinf(sharpness):
        own, sharpness = None, 1.0
    else:
        assert noise is not None
        own = noise * sampled[:, :, None]  # [R, depth, Vd]
    return Ranking(
        noise=own,
        sharpness=torch.where(sampled, sharpness, 1.0),
        temperatures=torch.where(sampled, temperatures, 1.0),
        filters=filters,
        kernels=kernels,
    )
