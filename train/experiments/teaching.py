"""The training data of an experiment's head: batches with the target's taps and states, either template, and losses.

Called by `variants`. The target computes in fp32 from the weights that serving uses; its outputs are kept in bf16, so
each batch is computed once however often it is used.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from aerie.train.heads.head import Head
from aerie.train.heads.loss import Judged, judge, looked_ahead, loss_mask
from aerie.train.heads.vocabulary import DraftVocabulary
from aerie.train.recital.conversations import Sample

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

    def __init__(self, folder: Path, boundaries: tuple[int, ...]) -> None:
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.model = model.eval().requires_grad_(False)
        self.boundaries = boundaries
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._last = torch.empty(0)
        self.model.model.norm.register_forward_pre_hook(self._take_last)

    @property
    def embedding(self) -> Tensor:
        """[vocabulary, hidden], shared with the head."""
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight

    @torch.no_grad()
    def show(self, key: int, ids: Tensor) -> Shown:
        """The outputs for the batch identified by `key`."""
        if key not in self._kept:
            output = self.model.model(ids, output_hidden_states=True, use_cache=False)
            states = [*output.hidden_states[:-1], self._last]
            taps = torch.cat([states[boundary] for boundary in self.boundaries], -1)
            self._kept[key] = taps.bfloat16(), output.last_hidden_state.bfloat16()
        taps, final = (part.float() for part in self._kept[key])
        return Shown(taps, final, self.model.lm_head(final))

    def _take_last(self, module: Any, inputs: tuple[Tensor, ...]) -> None:
        self._last = inputs[0]


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
