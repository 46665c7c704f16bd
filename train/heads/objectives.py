"""Training objectives by row: match the target's distribution (cross-entropy), or raise acceptance itself.

Called by `loss`. With p the target's distribution and q the head's, the share of drafts that verification accepts is
alpha = sum of min(p, q) = 1 - TV(p, q). The acceptance losses are those of "LK losses" (2026); they take p over all
ids, so that mass outside the draft vocabulary is not held against any one draft id.
"""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import cross_entropy

_KL_DECAY = 3.0
"""How fast `lk_lambda` moves away from cross-entropy as acceptance grows."""
_SMALL = 1e-6

Objective = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Takes the head's logits [rows, draft vocabulary], the target's renormalized distribution over the same ids, and the
mass [rows] that these ids had before; returns the sum over rows. `soft_cross_entropy` needs no mass and takes None.
"""


def soft_cross_entropy(drafted: Tensor, goals: Tensor, mass: Tensor | None = None) -> Tensor:
    """EAGLE-3's loss (Li et al., 2025)."""
    return cross_entropy(drafted, goals, reduction="sum")


def total_variation(drafted: Tensor, goals: Tensor, mass: Tensor | None) -> Tensor:
    return (1 - _accepted(drafted, goals, mass)).sum()


def lk_alpha(drafted: Tensor, goals: Tensor, mass: Tensor | None) -> Tensor:
    """-log alpha."""
    return -_accepted(drafted, goals, mass).clamp(min=_SMALL).log().sum()


def lk_lambda(drafted: Tensor, goals: Tensor, mass: Tensor | None) -> Tensor:
    """Cross-entropy where acceptance is low, for its gradients everywhere, and total variation where it is high."""
    accepted = _accepted(drafted, goals, mass)
    share = (-_KL_DECAY * accepted.detach()).exp()  # [rows], as accepted
    return (share * cross_entropy(drafted, goals, reduction="none") + (1 - share) * (1 - accepted)).sum()


OBJECTIVES: dict[str, Objective] = {
    "cross_entropy": soft_cross_entropy,
    "total_variation": total_variation,
    "lk_alpha": lk_alpha,
    "lk_lambda": lk_lambda,
}


def _accepted(drafted: Tensor, goals: Tensor, mass: Tensor | None) -> Tensor:
    """alpha [rows]."""
    wanted = goals if mass is None else goals * mass[:, None]  # [rows, draft vocabulary]
    return drafted.softmax(-1).minimum(wanted).sum(-1)
