"""The kinds of head in training: how to judge a packed row, and how to write the finished head.

Called by `fit`, which does not distinguish them. EAGLE-3 is unrolled by training-time test; P-EAGLE learns all its
drafts from one pass over elements, of which conditional drop keeps a part.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from aerie.contracts.errors import ConfigError
from aerie.engine.model.config import read_model_config
from aerie.train.heads.export import write_head
from aerie.train.heads.head import Head
from aerie.train.heads.loss import Judged, judge
from aerie.train.heads.objectives import OBJECTIVES
from aerie.train.heads.peagle.elements import Drop
from aerie.train.heads.peagle.export import write_parallel
from aerie.train.heads.peagle.head import ParallelHead
from aerie.train.heads.peagle.loss import Lesson, judge_parallel
from aerie.train.heads.unroll import unroll
from aerie.train.heads.vocabulary import DraftVocabulary
from aerie.train.pipeline.config import PipelineConfig, TrainStage
from aerie.train.pipeline.data.served import OutputEnd
from aerie.train.pipeline.data.shards import Index
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
    """EAGLE-3. `embedding` [vocabulary, hidden] is the target's."""

    stage: TrainStage
    head: Head
    embedding: Tensor
    vocabulary: DraftVocabulary

    def judge(self, number: int, row: Lesson) -> Iterator[Judged]:
        outputs = unroll(self.head, self.embedding, row.ids, row.taps, self.stage.depth, row.documents)
        yield judge(
            self.head,
            outputs,
            row.logits,
            row.answer,
            self.vocabulary,
            documents=row.documents,
            decay=self.stage.step_decay,
            objective=OBJECTIVES[self.stage.loss],
        )

    def write(self, folder: Path) -> None:
        write_head(self.head.cpu(), self.vocabulary, folder)


@dataclass(frozen=True, slots=True)
class Parallel:
    """P-EAGLE. Which elements of a row are dropped depends only on its number, whichever process takes it."""

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
        return Recurrent(stage, head.to(device), end.embedding, placed)
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
