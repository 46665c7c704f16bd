"""The head's loss against the target's own distributions, counted where drafting really happens."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from aerie.train.heads.blocks import rounded
from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.head import Head
from aerie.train.heads.objectives import Objective, soft_cross_entropy


@dataclass(frozen=True, slots=True)
class Judged:
    """A loss to minimize and per-step counts for metrics (no gradient).

    `reached` [steps]: columns whose earlier steps all drafted the target's most likely token; `right` [steps]: those of
    them that also drafted this step's; `columns` [steps]: all columns drafted from.
    """

    loss: Tensor
    reached: Tensor
    right: Tensor
    columns: Tensor

    def deepened(self, steps: int) -> "Judged":
        """The same with counts of `steps` steps: nothing was drafted at those that are missing."""
        missing = steps - len(self.reached)
        return Judged(self.loss, *(pad(counts, (0, missing)) for counts in (self.reached, self.right, self.columns)))


def loss_mask(answer: Tensor, step: int, documents: Tensor | None = None) -> Tensor:
    """[rows, columns] bool: where column t of `step` drafts inside an answer: m[t+1] and m[t+2] and .. and m[t+2+step].

    `answer` [rows, columns] marks answer tokens, their end token included. Column t reads tokens up to t+1+step and
    predicts t+2+step; drafting begins once t+1 has been generated, so all of them must be answer tokens. (EAGLE's own
    trainer masks by m[t+step], which drops the first draft of each answer and trains on what follows its end.)
    `documents` [rows, columns] numbers the conversations of a packed row; drafts end with their conversation.
    """
    mask = looked_ahead(answer, 1)
    for distance in range(2, step + 3):
        mask = mask & looked_ahead(answer, distance)
    if documents is not None:
        mask = mask & (looked_ahead(documents + 1, step + 2) == documents + 1)  # 0 is past the row's end
    return mask


class Drafting(Protocol):
    """A head of either kind."""

    def logits(self, output: Tensor) -> Tensor: ...


Mask = Callable[[Tensor, int, Tensor | None], Tensor]
"""Which columns of a step count, with the arguments of `loss_mask`; experiments try others."""


def judge(
    head: Head,
    outputs: Iterable[Tensor],
    logits: Tensor,
    answer: Tensor,
    vocabulary: DraftVocabulary,
    *,
    documents: Tensor | None = None,
    decay: float = 1.0,
    objective: Objective = soft_cross_entropy,
    counted: Mask = loss_mask,
) -> Judged:
    """The sum over steps, weighted by decay^step, of the mean `objective` over the columns that are `counted`.

    Columns whose most likely token is outside the draft vocabulary give no gradient, but count as misses. `logits`
    [rows, columns, target vocabulary] are the target's; everything is computed in their dtype, fp32 or wider.
    """
    top, draft_ids = logits.argmax(-1), vocabulary.draft_to_target  # [rows, columns], [draft vocabulary]
    draftable = vocabulary.t2d[top]  # [rows, columns], as alive
    goals = logits[..., draft_ids].softmax(-1)  # [rows, columns, draft vocabulary]
    loss = logits.new_zeros(())
    alive = torch.ones_like(answer)
    counts = []
    for step, output in enumerate(outputs):
        mask, ahead = counted(answer, step, documents), step + 1
        wanted = mask & looked_ahead(draftable, ahead)
        rows, columns = wanted.nonzero(as_tuple=True)  # [n] each
        drafted = drafted_logits(head, output[rows, columns]).to(logits.dtype)  # [n, draft vocabulary]
        mass = None if objective is soft_cross_entropy else _mass(logits[rows, columns + ahead], draft_ids)
        lost = objective(drafted, goals[rows, columns + ahead], mass) / max(1, len(rows))
        loss = loss + decay**step * lost
        hit = torch.zeros_like(mask)  # [rows, columns], as reached
        hit[rows, columns] = draft_ids[drafted.argmax(-1)] == top[rows, columns + ahead]
        reached = alive & mask
        alive = alive & hit
        counts.append(torch.stack([reached.sum(), (reached & hit).sum(), mask.sum()]))
    reached, right, drafts = torch.stack(counts).unbind(1)  # [steps] each
    return Judged(loss, reached, right, drafts)


def drafted_logits(head: Drafting, outputs: Tensor) -> Tensor:
    """outputs [n, hidden] -> [n, draft vocabulary], by a product of a round number of rows."""
    return head.logits(pad(outputs, (0, 0, 0, rounded(len(outputs)) - len(outputs))))[: len(outputs)]


def acceptance_length(reached: Tensor, right: Tensor) -> float:
    """Committed tokens of a greedy chain: 1 + the sum over k of the product of conditional accuracies up to k."""
    return 1 + float((right / reached.clamp(min=1)).cumprod(0).sum())


def _mass(logits: Tensor, draft_ids: Tensor) -> Tensor:
    """logits [rows, target vocabulary] -> [rows]: the target's probability mass inside the draft vocabulary."""
    return (logits[:, draft_ids].logsumexp(-1) - logits.logsumexp(-1)).exp()


def looked_ahead(x: Tensor, distance: int) -> Tensor:
    """x[:, t + distance], False or 0 past the end; x [rows, columns]."""
    shifted = torch.zeros_like(x)
    if distance < x.shape[1]:
        shifted[:, : x.shape[1] - distance] = x[:, distance:]
    return shifted
