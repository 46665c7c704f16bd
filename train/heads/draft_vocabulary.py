"""The draft vocabulary: the ids most frequent in answers, and the maps between them and the target's ids.

Fixed before the head's training and stored with it; resuming a head with other maps would silently ruin it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """`draft_to_target` [draft vocabulary] int64, ascending; `size` is the target's vocabulary."""

    draft_to_target: Tensor
    size: int
    coverage: float
    """Share of the counted answer tokens that are in the draft vocabulary."""

    @property
    def d2t(self) -> Tensor:
        """[draft vocabulary] offsets, as checkpoints store them: target id = draft id + d2t[draft id]."""
        return self.draft_to_target - torch.arange(len(self.draft_to_target), device=self.draft_to_target.device)

    @property
    def t2d(self) -> Tensor:
        """[size] bool: whether a target id can be drafted."""
        members = torch.zeros(self.size, dtype=torch.bool, device=self.draft_to_target.device)
        members[self.draft_to_target] = True
        return members


def draft_vocabulary(answers: Iterable[list[int]], *, kept: int, size: int, always: Iterable[int]) -> DraftVocabulary:
    """The `kept` most frequent ids of the answers, including those of `always`; ties and gaps go to the lowest ids."""
    if not 0 < kept <= size:
        raise ValueError(f"draft_vocabulary is {kept}; it must be at least 1 and at most the target's {size}")
    counts = Counter(token for answer in answers for token in answer)
    first = set(always)
    order = sorted(range(size), key=lambda token: (token not in first, -counts[token], token))
    chosen = sorted(order[:kept])
    covered = sum(counts[token] for token in chosen) / max(1, counts.total())
    return DraftVocabulary(torch.tensor(chosen), size, covered)
