"""What a draft's distribution should be brought to, row by row: the target's (cross-entropy), or acceptance itself.

Called by `loss`. With p the target's distribution and q the head's, the share of drafts that verification accepts is
alpha = sum of min(p, q) = 1 - TV(p, q). The acceptance-targeted losses are those of "LK losses" (2026); they read p as
it is over all ids, so that mass which the head cannot draft is not held against any one of its ids.
"""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import cross_entropy

_KL_DECAY = 3.0
"""How fast `lk_lambda` leaves cross-entropy as acceptance grows."""
_SMALL = 1e-6

Objective = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""From the head's logits [rows, draft vocabulary], the target's distribution over the same ids, renormalized, and the
mass [rows] that they had before, to the sum over rows. The mass is None for `soft_cross_entropy`, which needs none."""


def soft_cross_entropy(drafted: Tensor, goals: Tensor, mass: Tensor | None = None) -> Tensor:
    """The paper's (EAGLE-3, Li et al., 2025)."""
    return cross_entropy(drafted, goals, reduction="sum")


def total_variation(drafted: Tensor, goals: Tensor, mass: Tensor | None) -> Tensor:
    return (1 - _accepted(drafted, goals, mass)).sum()


def lk_alpha(drafted: Tensor, goals: Tensor, mass: Tensor | None) -> Tensor:
    """-log alpha."""
    return -_accepted(drafted, goals, mass).clamp(min=_SMALL).log().sum()


def lk_lambda(drafted: Tensor, goals: Tensor, mass: Tensor | None) -> Tensor:
    """Cross-entropy where little is accepted, which has gradients everywhere, and total variation where much is."""
    accepted = _accepted(drafted, goals, mass)
    share = (-_KL_DECAY * accepted.detach()).exp()
    return (share * cross_entropy(drafted, goals, reduction="none") + (1 - share) * (1 - accepted)).sum()


OBJECTIVES: dict[str, Objective] = {
    "cross_entropy": soft_cross_entropy,
    "total_variation": total_variation,
    "lk_alpha": lk_alpha,
    "lk_lambda": lk_lambda,
}


def _accepted(drafted: Tensor, goals: Tensor, mass: Tensor | None) -> Tensor:
    """alpha [rows]."""
    wanted = goals if mass is None else goals * mass[:, None]
    return drafted.softmax(-1).minimum(wanted).sum(-1)
