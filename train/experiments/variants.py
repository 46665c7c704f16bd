"""One arm with one seed: its settings of the stage `train`, and the losses that only experiments have.

Called by `table`. Every head starts as those of `aerie train` do, with the target's final norm and output rows. So arms
differ only in their settings.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from aerie.contracts.errors import AerieError
from aerie.train.experiments.config import FEATURE, Arm
from aerie.train.experiments.teaching import judge_feature, stale_mask
from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.loss import Judged
from aerie.train.heads.peagle.loss import Lesson
from aerie.train.heads.unroll import unroll
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.served import OutputEnd
from aerie.train.pipeline.data.shards import Index
from aerie.train.pipeline.fit import Begin
from aerie.train.pipeline.fitting.config import TrainStage
from aerie.train.pipeline.fitting.kinds import Kind, Recurrent, begun_kind


def settings_of(proxy: PipelineConfig, arm: Arm, *, place: int, places: int) -> TrainStage:
    """The arm's section `train`. The seed at `place` of `places` has an equal part of the exercises to itself.

    Raises AerieError if the arm asks for more answers than a part has.
    """
    part = proxy.prompts.drawn // places
    if arm.answers > part:
        raise AerieError(
            f"{arm.name} asks for {arm.answers} answers; of {proxy.prompts.drawn} exercises (prompts.drawn) each of "
            f"{places} seeds has {part} to itself"
        )
    own = {
        "kind": arm.kind,
        "start": arm.start,
        "depth": arm.depth,
        "loss": TrainStage().loss if arm.loss == FEATURE else arm.loss,
        "tap_norms": arm.norms,
        "norm_output": arm.norms,
        "norm_before_residual": arm.norm_before_residual,
        "documents": (place * part, place * part + arm.answers),
        "peagle": proxy.train.peagle.model_dump() | {"layers": arm.layers},
    }
    return TrainStage.model_validate(proxy.train.model_dump() | own)


def beginning(arm: Arm) -> Begin:
    """How the stage `train` initializes the arm's head."""

    def begin(config: PipelineConfig, index: Index, chosen: DraftVocabulary, end: OutputEnd) -> Kind:
        if arm.taps == "top":
            index = replace(index, boundaries=(end.model.layers,))
        kind = begun_kind(config, index, chosen, end)
        if isinstance(kind, Recurrent):
            if arm.rows == "frozen":
                kind.head.norm.requires_grad_(False)
                kind.head.lm_head.requires_grad_(False)
            if arm.mask == "stale":
                kind = replace(kind, counted=stale_mask)
        return Variant(arm, kind, end)

    return begin


@dataclass(frozen=True, slots=True)
class Variant:
    """A head in training, with the taps and the loss of its arm."""

    arm: Arm
    inner: Kind
    end: OutputEnd

    @property
    def head(self) -> nn.Module:
        return self.inner.head

    def judge(self, number: int, row: Lesson) -> Iterator[Judged]:
        if self.arm.taps == "top":
            assert row.final is not None
            row = replace(row, taps=row.final)
        if self.arm.loss == FEATURE:
            yield self._feature(number, row)
        else:
            yield from self.inner.judge(number, row)

    def _feature(self, number: int, row: Lesson) -> Judged:
        kind, final = self.inner, row.final
        assert isinstance(kind, Recurrent) and final is not None
        depth, decay = kind.depth_of(number)
        outputs = unroll(kind.head, kind.embedding, row.ids, row.taps, depth, row.documents)
        judged = judge_feature(
            kind.head,
            outputs,
            self.end.normed(final),
            row.logits,
            row.answer,
            kind.vocabulary,
            documents=row.documents,
            decay=decay,
        )
        return judged.deepened(kind.stage.depth)

    def write(self, folder: Path) -> None:
        self.inner.write(folder)
