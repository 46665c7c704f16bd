"""Chooses the target's token: argmax(logits / T + g) over the support that the request's filters leave.

The order, as in vLLM: logit_bias, repetition, frequency and presence penalty, bans, the grammar, temperature, min-p,
top-k, top-p. Temperature 0 uses neither noise nor filters. Both workers choose here and the drafter draws the same
noise, so speculation cannot change a seeded answer.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.contracts.sampling import GREEDY_BELOW
from aerie.engine.sampling.edits import edit
from aerie.engine.sampling.noise import gumbel
from aerie.engine.state.row_tables import RowTables

FILTER_COLUMNS = ("min_p", "top_k", "top_p")
"""The columns that `filtered` reads, in its order."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What the rows of a step need, decided on the host so that no step needs a host sync."""

    noise: bool
    """Some row samples."""
    filters: bool
    """Some sampling row has top-k, top-p or min-p."""
    bans: bool
    """Some row has min_tokens."""
    edits: bool = False
    """Some row has penalties, biases or bans of its own."""


def choose(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    tables: RowTables,
    needs: Needs,
    *,
    noise: Tensor | None = None,
    path: Tensor | None = None,
    allowed: Tensor | None = None,
) -> Tensor:
    """logits [n, V] fp32, rows [n], absolute positions [n] of the tokens to choose -> ids [n] int64.

    `noise` [n, V] is the result of `gumbel`, if the caller has it already. Greedy rows ignore it. `path` [n, M] has the
    drafted ids above and at each node, -1 elsewhere; None if nothing was drafted or no row edits logits. `allowed`
    [n, V] bool is what grammars leave.
    """
    logits = edited(logits, rows, positions, tables, needs, path, allowed)
    if not needs.noise:
        return likeliest(logits)
    temperatures = tables.sampling["temperature"][rows]  # [n], as sampled
    sampled = temperatures >= GREEDY_BELOW
    scaled = logits / torch.where(sampled, temperatures, 1.0)[:, None]  # [n, V], as support and noise
    if needs.filters:
        support = filtered(scaled, *(tables.sampling[name][rows] for name in FILTER_COLUMNS))
        scaled = torch.where(sampled[:, None], support, scaled)
    if noise is None:
        noise = gumbel(tables.noise_keys[rows], positions, torch.arange(logits.shape[1], device=logits.device))
    return torch.where(sampled[:, None], scaled + noise, scaled).argmax(-1)


def likeliest(logits: Tensor) -> Tensor:
    """logits [n, V] -> [n] int64"""
    return logits.argmax(-1)


def edited(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    tables: RowTables,
    needs: Needs,
    path: Tensor | None,
    allowed: Tensor | None,
    edit: Callable[[Tensor, Tensor, RowTables, Tensor | None], Tensor] = edit,
) -> Tensor:
    """logits [n, V] -> what greedy rows choose the likeliest token of: biases, penalties, bans, then the grammar.

    Every implementation of `choose` begins here, with its own `edit`.
    """
    edits = edit(logits, rows, tables, path) if needs.edits else logits
    edits = ban_stop_ids(edits, rows, positions, tables) if needs.bans else edits
    return edits if allowed is None else masked(edits, logits, allowed)


def masked(edits: Tensor, logits: Tensor, allowed: Tensor) -> Tensor:
    """edits, logits [n, V], allowed [n, V] bool -> edits with -inf at what is not allowed. A grammar beats bans: where
    they leave nothing of what it allows, the raw logits decide among that.
    """
    held = edits.masked_fill(~allowed, float("-inf"))  # [n, V]
    if edits is logits:  # of which a grammar always leaves some
        return held
    empty = held.amax(-1, keepdim=True) == float("-inf")  # [n, 1]
    return torch.where(empty, logits.masked_fill(~allowed, float("-inf")), held)


def ban_stop_ids(logits: Tensor, rows: Tensor, positions: Tensor, tables: RowTables) -> Tensor:
    """logits [n, V] -> the same with -inf at the stop ids of rows whose answer is still shorter than min_tokens."""
    early = positions < tables.min_lengths[rows]  # [n]
    ids = tables.stop_ids[rows]  # [n, stop ids]
    banned = torch.zeros_like(logits, dtype=torch.bool)
    banned.scatter_(1, ids.clamp(min=0), (ids >= 0) & early[:, None])
    return logits.masked_fill(banned, float("-inf"))


def filtered(scaled: Tensor, min_ps: Tensor, top_ks: Tensor, top_ps: Tensor) -> Tensor:
    """scaled [n, V], the filters [n] each -> scaled with -inf outside the support. Ties at the edge of top-k and the
    most likely token stay.
    """
    peak = scaled.max(-1, keepdim=True).values  # [n, 1], as floor
    scaled = scaled.masked_fill(scaled < peak + min_ps[:, None].log(), float("-inf"))
    ordered, _ = scaled.sort(-1, descending=True)  # [n, V], as probabilities, before and kept
    last = torch.where(top_ks > 0, top_ks, scaled.shape[1]).clamp(max=scaled.shape[1]).long() - 1  # [n]
    ordered = ordered.masked_fill(ordered < ordered.gather(1, last[:, None]), float("-inf"))
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    kept = ((before < top_ps[:, None]) | (top_ps[:, None] >= 1)) & (ordered > float("-inf"))  # rounded sums can pass 1
    floor = ordered.gather(1, (kept.sum(-1, keepdim=True) - 1).clamp(min=0))
    return scaled.masked_fill(scaled < floor, float("-inf"))


def token_logprobs(logits: Tensor, chosen: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Under the unfiltered target's logits [n, V]: log probabilities of `chosen` [n], then the `count` most likely ids
    and theirs [n, count].
    """
    logprobs = logits.log_softmax(-1)
    values, ids = logprobs.topk(count, -1)
    return logprobs.gather(1, chosen[:, None]).squeeze(1), ids, values
