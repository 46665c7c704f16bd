"""The kinds of head in training: how to judge a packed row, and how to write the finished head.

Called by `fit`, which does not distinguish them. EAGLE-3 is unrolled by training-time test; P-EAGLE learns all its
drafts from one pass over elements, of which conditional drop keeps a part.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from aerie.contracts.errors import ConfigError
from aerie.engine.model.config import read_model_config
from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.head import Head
from aerie.train.heads.layout import write_head
from aerie.train.heads.loss import Judged, Mask, judge, loss_mask
from aerie.train.heads.objectives import OBJECTIVES
from aerie.train.heads.peagle.elements import Drop
from aerie.train.heads.peagle.head import ParallelHead
from aerie.train.heads.peagle.layout import write_parallel
from aerie.train.heads.peagle.loss import Lesson, judge_parallel
from aerie.train.heads.unroll import unroll
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.served import OutputEnd
from aerie.train.pipeline.data.shards import Index
from aerie.train.pipeline.fitting.config import TrainStage
from aerie.train.pipeline.fitting.initial import first_head, first_parallel


class Kind(Protocol):
    """A head in training."""

    @property
    def head(self) -> nn.Module: ...

    def judge(self, number: int, row: Lesson) -> Iterator[Judged]:
        """Yields the losses of the packed row `number`; run backward on each before taking the next."""

    def write(self, folder: Path) -> None:
        """Writes config and weights, in bf16. `folder` exists."""


@dataclass(frozen=True, slots=True)
class Recurrent:
    """EAGLE-3. `embedding` [vocabulary, hidden] is the target's; `counted` says where drafts count."""

    stage: TrainStage
    seed: int
    head: Head
    embedding: Tensor
    vocabulary: DraftVocabulary
    counted: Mask = loss_mask

    def judge(self, number: int, row: Lesson) -> Iterator[Judged]:
        stage = self.stage
        depth, decay = self.depth_of(number)
        drafting = torch.stack([self.counted(row.answer, step, row.documents) for step in range(depth)]).any(0)
        outputs = unroll(self.head, self.embedding, row.ids, row.taps, depth, row.documents, drafting)
        judged = judge(
            self.head,
            outputs,
            row.logits,
            row.answer,
            self.vocabulary,
            documents=row.documents,
            decay=decay,
            objective=OBJECTIVES[stage.loss],
            counted=self.counted,
        )
        yield judged.deepened(stage.depth)

    def depth_of(self, number: int) -> tuple[int, float]:
        """To which depth the row `number` is unrolled, and the weight of each step relative to the one before."""
        return (self._drawn(number), 1.0) if self.stage.draw_depth else (self.stage.depth, self.stage.step_decay)

    def _drawn(self, number: int) -> int:
        """The depth of a row: more than k with probability step_decay^k, whichever process takes it.

        On average this is the sum of losses weighted by step_decay^k, at the cost of 4 steps instead of 7 (decay 0.8).
        """
        rng, depth = random.Random(f"{self.seed} depth {number}"), 1
        while depth < self.stage.depth and rng.random() < self.stage.step_decay:
            depth += 1
        return depth

    def write(self, folder: Path) -> None:
        write_head(self.head.cpu(), self.vocabulary, folder)


@dataclass(frozen=True, slots=True)
class Parallel:
    """P-EAGLE. `embedding` [vocabulary, hidden] is the target's. Which elements of a row are dropped depends only on
    its number, whichever process takes it.
    """

    stage: TrainStage
    seed: int
    head: ParallelHead
    embedding: Tensor
    vocabulary: DraftVocabulary

    def judge(self, number: int, row: Lesson) -> Iterator[Judged]:
        own = self.stage.peagle
        return judge_parallel(
            self.head,
            self.embedding,
            row,
            self.vocabulary,
            Drop(self.stage.depth, own.rate, own.floor),
            torch.Generator().manual_seed(self.seed * 1_000_003 + number),
            limit=own.elements,
            objective=OBJECTIVES[self.stage.loss],
            decay=own.depth_decay,
        )

    def write(self, folder: Path) -> None:
        write_parallel(self.head.cpu(), self.embedding.cpu(), self.vocabulary, folder, depth=self.stage.depth)


def begun_kind(config: PipelineConfig, index: Index, chosen: DraftVocabulary, end: OutputEnd) -> Kind:
    """The initialized head of `train.kind`, on the device of `end`."""
    stage, device, target = config.train, end.embedding.device, OutputEnd(Path(config.target))
    placed = DraftVocabulary(chosen.draft_to_target.to(device), chosen.size, chosen.coverage)
    if stage.kind == "eagle3":
        head = first_head(stage, config.seed, target, index, chosen)
        return Recurrent(stage, config.seed, head.to(device), end.embedding, placed)
    parallel = first_parallel(stage, config.seed, target, index, chosen, mask_token(config))
    return Parallel(stage, config.seed, parallel.to(device), end.embedding, placed)


def mask_token(config: PipelineConfig) -> int:
    """The id whose embedding row a P-EAGLE head's mask takes. Raises ConfigError if texts may contain it."""
    key, model = "train.peagle.mask_token", read_model_config(Path(config.target))
    found = config.train.peagle.mask_token
    if found is None:
        found = AutoTokenizer.from_pretrained(config.target, local_files_only=True).pad_token_id
    if found is None or found in model.end_ids or not 0 <= found < model.vocabulary:
        raise ConfigError(
            f"the mask token is {found} ({key}, or the tokenizer's padding); it has to be an id of 0 .. "
            f"{model.vocabulary - 1} that no text has and that ends none: name one that is unused or reserved",
            param=key,
        )
    return int(found)
