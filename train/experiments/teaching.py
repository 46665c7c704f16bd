"""The masks and losses of arms that `aerie train` does not have: EAGLE's own mask and its feature loss."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.head import Head
from aerie.train.heads.loss import Judged, judge, looked_ahead, loss_mask

_FEATURE_SHARE, _LABEL_SHARE = 1.0, 0.1
"""EAGLE's weights of the regression and of the cross-entropy."""


def stale_mask(answer: Tensor, step: int, documents: Tensor | None = None) -> Tensor:
    """[rows, columns] bool: m[t + step], as EAGLE's own trainer masks column t of `step`: by the last token read.

    So the first draft of an answer is not trained, and the last columns are trained on what follows its end.
    """
    one = torch.ones_like(answer, dtype=torch.long) if documents is None else documents + 1  # 0 is past the row's end
    return looked_ahead(answer, step) & (looked_ahead(one, step + 1) == one)


def judge_feature(
    head: Head,
    outputs: Iterable[Tensor],
    final: Tensor,
    logits: Tensor,
    answer: Tensor,
    vocabulary: DraftVocabulary,
    *,
    documents: Tensor | None = None,
    decay: float = 1.0,
) -> Judged:
    """EAGLE-1 and 2: smooth L1 between the head's normed outputs and the target's final states, and a tenth of the
    cross-entropy, each step weighted by decay^step.

    `final` [rows, columns, hidden] is after the target's last norm; `logits` [rows, columns, vocabulary].
    """
    steps = list(outputs)
    judged = judge(head, steps, logits, answer, vocabulary, documents=documents, decay=decay)
    loss = _LABEL_SHARE * judged.loss
    for step, output in enumerate(steps):
        rows, columns = loss_mask(answer, step, documents).nonzero(as_tuple=True)
        if len(rows):
            regression = smooth_l1_loss(head.norm(output[rows, columns]), final[rows, columns + step + 1])
            loss = loss + decay**step * _FEATURE_SHARE * regression
    return Judged(loss, judged.reached, judged.right, judged.columns)
