"""Draft ids to target ids. A head may draft only a part of the target's vocabulary; `d2t` in its checkpoint says which.

Invariant: `d2t[i]` is an *offset* (target id = i + d2t[i]), and the map is never rebuilt from `t2d`, which loses the
order.
"""

import torch
from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.engine.model.weights import Source


def draft_to_target(weights: Source, *, draft_vocabulary: int, vocabulary: int) -> Tensor | None:
    """[draft_vocabulary] int64 target ids, or None if draft ids *are* target ids.

    Raises ConfigError on a reduced vocabulary without `d2t`, and on maps with a repeated id or one outside the
    target's.
    """
    found: Tensor | None = None
    if "d2t" in weights:
        offsets = weights.take("d2t", (draft_vocabulary,), torch.int64)
        found = torch.arange(draft_vocabulary, device=offsets.device) + offsets
        _check(found, vocabulary)
    elif draft_vocabulary != vocabulary:
        raise ConfigError(
            f"the head drafts {draft_vocabulary} of {vocabulary} ids and has no d2t that says which; "
            f"the checkpoint is incomplete",
            param="spec.head",
        )
    if "t2d" in weights:
        _check_members(weights.take("t2d", (vocabulary,), torch.bool), found, draft_vocabulary)
    identity = draft_vocabulary == vocabulary and (found is None or bool((offsets == 0).all()))
    return None if identity else found


def _check(ids: Tensor, vocabulary: int) -> None:
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        raise ConfigError(
            f"the head's d2t maps to ids {low} .. {high}; the target has 0 .. {vocabulary - 1}", param="spec.head"
        )
    repeated = int((ids.sort().values.diff() == 0).sum())
    if repeated:
        raise ConfigError(
            f"the head's d2t maps {ids.numel()} draft ids to {ids.numel() - repeated} target ids; each needs its own",
            param="spec.head",
        )


def _check_members(members: Tensor, ids: Tensor | None, draft_vocabulary: int) -> None:
    """Raises ConfigError. Accepts the all-False or all-True maps that some producers write for a full vocabulary."""
    if ids is None or (draft_vocabulary == members.numel() and not bool(members.any())):
        return
    if int(members.sum()) != draft_vocabulary or not bool(members[ids].all()):
        raise ConfigError(
            f"the head's t2d marks {int(members.sum())} ids and disagrees with d2t, which maps {draft_vocabulary}",
            param="spec.head",
        )
