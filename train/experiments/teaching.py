"""The training data of an experiment's head: batches with the target's taps and states, either template, and losses.

Called by `variants`. The target computes in the serving engine, in fp32; its outputs are kept in bf16, so each batch is
computed once however often it is used.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss
from transformers import PreTrainedTokenizerFast

from aerie.train.demo.batches import Sample
from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.head import Head
from aerie.train.heads.loss import Judged, judge, looked_ahead, loss_mask
from aerie.train.pipeline.data.served import OutputEnd, ServedTarget, States

_FEATURE_SHARE, _LABEL_SHARE = 1.0, 0.1
"""EAGLE's weights of the regression and of the cross-entropy."""


@dataclass(frozen=True, slots=True)
class Shown:
    """`taps` [rows, columns, taps * hidden], `final` [rows, columns, hidden] after the target's last norm, and its
    `logits` [rows, columns, vocabulary].
    """

    taps: Tensor
    final: Tensor
    logits: Tensor


class Teacher:
    """The frozen target; boundary L, the number of its layers, is the last layer's output before the norm."""

    def __init__(self, folder: Path, boundaries: tuple[int, ...], *, longest: int, threads: int) -> None:
        self.end = OutputEnd(folder)
        self.boundaries = boundaries
        self._inner = tuple(boundary for boundary in boundaries if boundary < self.end.model.layers)
        self._served = ServedTarget(
            folder, self._inner, longest=longest, dtype="float32", threads=threads, device="cpu"
        )
        self._kept: dict[int, States] = {}

    def show(self, key: int, ids: Tensor) -> Shown:
        """The outputs for the batch identified by `key`; causal attention never sees its padding on the right."""
        if key not in self._kept:
            rows = [self._served.states(row) for row in ids.tolist()]
            self._kept[key] = States(
                *(torch.stack(parts) for parts in zip(*((r.taps, r.final) for r in rows), strict=True))
            )
        kept = self._kept[key]
        taps = kept.taps if self._inner == self.boundaries else torch.cat([kept.taps, kept.final], -1)
        return Shown(taps.float(), self.end.normed(kept.final), self.end.logits(kept.final))


def without_template(samples: list[Sample], tokenizer: PreTrainedTokenizerFast) -> list[Sample]:
    """The same texts, with only the first token of the template before the answer."""
    marks = set(tokenizer.all_special_ids)
    bare = []
    for sample in samples:
        columns = enumerate(zip(sample.ids, sample.answer, strict=True))
        kept = [(token, said) for at, (token, said) in columns if at == 0 or said or token not in marks]
        bare.append(Sample([token for token, _ in kept], [said for _, said in kept]))
    return bare


def stale_mask(answer: Tensor, step: int, documents: Tensor | None = None) -> Tensor:
    """[rows, columns] bool: m[t + step], as EAGLE's own trainer masks column t of `step`: by the last token read.

    So the first draft of an answer is not trained, and the last columns are trained on what follows its end.
    """
    return looked_ahead(answer, step) & looked_ahead(torch.ones_like(answer), step + 1)


def judge_feature(
    head: Head, outputs: Iterable[Tensor], shown: Shown, answer: Tensor, vocabulary: DraftVocabulary
) -> Judged:
    """EAGLE-1 and 2: smooth L1 between the head's normed output and the target's next final state, and a tenth of
    cross-entropy; one step, no training-time test.
    """
    output = next(iter(outputs))
    judged = judge(head, [output], shown.logits, answer, vocabulary)
    rows, columns = loss_mask(answer, 0).nonzero(as_tuple=True)
    if not len(rows):
        return judged
    regression = smooth_l1_loss(head.norm(output[rows, columns]), shown.final[rows, columns + 1])
    return Judged(
        _FEATURE_SHARE * regression + _LABEL_SHARE * judged.loss, judged.reached, judged.right, judged.columns
    )
