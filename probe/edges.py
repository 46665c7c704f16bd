"""How far every token is from the edges of a request's filters, and the least change that would have made it the
choice.

A distance is a difference of two scaled logits, like a margin. Where one is within the rounding of the logits, a token
passes a filter in one batch and not in another, whatever the margin between the two best is. Called by `margins`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from aerie.contracts.sampling import SamplingParams


class Distance(NamedTuple):
    gap: float
    edge: str | None
    """The filter at whose edge the gap ends; None between two choices."""


@dataclass(frozen=True, slots=True)
class Edges:
    """For logits / T [V], by filter: how far each token is inside; negative if outside. Without a filter: inf."""

    inside: dict[str, Tensor]

    @property
    def nearest(self) -> Tensor:
        """[V]: the distance to the nearest filter edge, since a token has to pass every filter."""
        return torch.stack([*self.inside.values()]).amin(0)

    def needed(self, z: Tensor, token: int) -> Distance:
        """The least change of values that makes `token` the best of z [V] among those that pass: it has to pass itself,
        and each better token has to fall below it or outside.
        """
        nearest = self.nearest
        better = torch.minimum((z - z[token]).double(), nearest)
        rival = int(better.argmax())
        own, other = -float(nearest[token]), float(better[rival])
        gap = max(own, other, 0.0)
        if gap == 0 or (own < other < float(nearest[rival])):
            return Distance(gap, None)
        at = token if own >= other else rival
        return Distance(gap, min(self.inside, key=lambda name: float(self.inside[name][at])))


def filter_edges(scaled: Tensor, sampling: SamplingParams) -> Edges:
    """Edges for logits / T [V], in the order of the filters: min-p, top-k, top-p."""
    scaled = scaled.double()
    size = scaled.numel()
    free = torch.full_like(scaled, torch.inf)
    inside = {"min_p": free, "top_k": free, "top_p": free}
    if sampling.greedy:
        return Edges(inside)
    kept = size
    ordered, order = scaled.sort(descending=True, stable=True)
    if sampling.min_p > 0:
        inside["min_p"] = scaled - scaled.max() - torch.tensor(sampling.min_p).double().log()
        kept = int((inside["min_p"] >= 0).sum())
    if 0 < sampling.top_k < size:
        inside["top_k"] = _beside(scaled, ordered, sampling.top_k)
        kept = min(kept, int((inside["top_k"] >= 0).sum()))
    if sampling.top_p < 1:
        before = _mass_before(ordered, kept, full=kept == sampling.top_k)
        mass = before.new_tensor(sampling.top_p).logit() - before.logit()
        passed = max(int((mass[:kept] >= 0).sum()), 1)
        swapped = _beside(scaled, ordered, passed)[order]
        near = torch.maximum(mass, swapped)  # a token outside takes more mass, or the place of the last one inside
        near[:passed] = torch.minimum(mass, swapped)[:passed] if passed < kept else mass[:passed]
        inside["top_p"] = torch.empty_like(near).index_copy_(0, order, near)
    return Edges(inside)


def _beside(scaled: Tensor, ordered: Tensor, count: int) -> Tensor:
    """Distance of each token to crossing the edge after the `count` largest; ties with the last are inside."""
    last = ordered[count - 1]
    following = ordered[ordered < last]
    first_out = following[0] if following.numel() else scaled.new_tensor(-torch.inf)
    return torch.where(scaled >= last, scaled - first_out, scaled - last)


def _mass_before(ordered: Tensor, kept: int, *, full: bool) -> Tensor:
    """By rank, the probability mass before a token among the `kept` best.

    A token outside would be the last of them, in the place of the last if top-k is `full`.
    """
    weights = (ordered - ordered[0]).exp()
    sums = weights.cumsum(0)
    before, whole = sums - weights, sums[kept - 1]
    held = before[kept - 1] if full else whole
    outside = (held / (held + weights)).nan_to_num(0.0)  # 0 / 0 for a token that would stand alone
    return torch.where(torch.arange(ordered.numel(), device=ordered.device) < kept, before / whole, outside)
