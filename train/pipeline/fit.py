"""Stage 6: trains the head, of either kind, on packed conversations.

Runs alone or as one of several processes of `torchrun`. A killed run resumes from its last checkpoint with the same
rows in the same order and ends with the same bytes. Weights, their gradients and the optimizer are float32; with
`precision: bfloat16` only products are computed in bf16.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from aerie.contracts.errors import AerieError
from aerie.contracts.provenance import template_hash, template_source, weights_hash
from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.loss import Judged
from aerie.train.heads.peagle.loss import Lesson
from aerie.train.optimization import checkpoint
from aerie.train.optimization.optimizers import divided
from aerie.train.optimization.precision import dtype_of, slow_here
from aerie.train.optimization.schedule import set_rate, share, warm_cosine
from aerie.train.pipeline import features, vocabulary
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.packing import Row, Rows
from aerie.train.pipeline.data.served import OutputEnd, ServedTarget, tap_boundaries
from aerie.train.pipeline.data.shards import Index, Shards
from aerie.train.pipeline.fitting.config import TrainStage
from aerie.train.pipeline.fitting.kinds import Kind, begun_kind
from aerie.train.pipeline.fitting.metrics import Metrics, last_line, line_of, tell
from aerie.train.pipeline.fitting.processes import Processes
from aerie.train.pipeline.folder import begin, input_hash, manifest_of, reported_when_full
from aerie.train.progress import bar, say

STAGE = "train"
HEAD = "head"
"""The head's folder inside the stage's folder, in the layout of SpecForge."""
_CHECKPOINT = "checkpoint"
NOT_RESULTS = {"threads", "device"}
"""Settings on which no weight depends."""

Begin = Callable[[PipelineConfig, Index, DraftVocabulary, OutputEnd], Kind]
"""Initializes a head in training; experiments try others."""


def train_head(config: PipelineConfig, begun: Begin = begun_kind) -> Path:
    """Raises AerieError if features or vocabulary were made for another target, template or set of taps."""
    processes = Processes(config.train.device)
    try:
        return _train(config, processes, begun)
    finally:
        processes.close()


def _train(config: PipelineConfig, processes: Processes, begin_kind: Begin) -> Path:
    stage, work = config.train, Path(config.work)
    torch.set_num_threads(stage.threads)
    inputs = {name: input_hash(work, name) for name in (features.STAGE, vocabulary.STAGE)}
    shards = Shards(work / features.STAGE)
    inputs |= {"target": shards.index.target}
    if stage.start_from is not None:
        inputs["start_from"] = weights_hash(Path(stage.start_from))
    _check_features(config, shards.index, manifest_of(work, vocabulary.STAGE)["inputs"], inputs)
    settings = stage.model_dump(mode="json", exclude=NOT_RESULTS) | {"seed": config.seed}
    folder = work / f"{STAGE}.partial"
    if processes.first:
        begun = begin(work, STAGE, settings, inputs)
    processes.wait()
    run = _Run.start(config, shards, processes, begin_kind)
    with reported_when_full(folder):
        run.go(folder, work / "tensorboard")
        processes.wait()
        if not processes.first:
            return work / STAGE
        run.kind.write(_made(folder / HEAD))
    last = last_line(folder)
    return begun.finish({"steps": run.steps, "rows": run.steps * stage.accumulate, "last": last})


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _check_features(config: PipelineConfig, index: Index, chosen_from: dict[str, str], inputs: dict[str, str]) -> None:
    target = Path(config.target)
    template = template_hash(template_source(target, None if config.template is None else Path(config.template)))
    boundaries = tap_boundaries(config.features.taps, OutputEnd(target).model.layers)
    for what, found, wanted in (
        ("target (sha256 of its weights)", index.target, weights_hash(target)),
        ("chat template (sha256)", index.template, template),
        ("set of taps (boundaries)", list(index.boundaries), list(boundaries)),
    ):
        if found != wanted:
            raise AerieError(f"the features were made with another {what}: {found}; the config's is {wanted}")
    if chosen_from[features.STAGE] != inputs[features.STAGE]:
        raise AerieError("the draft vocabulary was chosen from other features; run the stage vocabulary again")


@dataclass(slots=True)
class _Run:
    """Everything that an update needs."""

    stage: TrainStage
    processes: Processes
    kind: Kind
    end: OutputEnd
    rows: Rows
    steps: int
    optimizers: list[Optimizer] = field(default_factory=list)

    @classmethod
    def start(cls, config: PipelineConfig, shards: Shards, processes: Processes, begin_kind: Begin) -> "_Run":
        stage, index = config.train, shards.index
        end = OutputEnd(Path(config.target), str(processes.device))
        chosen = vocabulary.read_vocabulary(Path(config.work) / vocabulary.STAGE, end.model.vocabulary)
        kind = begin_kind(config, index, chosen, end)
        compute = None
        if index.mode == "online":
            size = {"longest": index.longest, "dtype": index.dtype, "threads": stage.threads}
            compute = ServedTarget(Path(config.target), index.boundaries, **size).states  # type: ignore[arg-type]
        rows = Rows(shards, tokens=stage.tokens, seed=config.seed, compute=compute, documents=stage.documents)
        steps = stage.steps or max(1, rows.of_epochs(stage.epochs) // stage.accumulate)
        return cls(stage, processes, kind, end, rows, steps, _optimizers(stage, kind.head))

    def go(self, folder: Path, board: Path) -> None:
        """Trains from the last checkpoint in `folder` to the end."""
        stage, first = self.stage, self.processes.first
        start = checkpoint.load(folder / _CHECKPOINT, self.kind.head, self.optimizers)
        self.processes.wait()
        metrics = Metrics(folder, board, start=start) if first else None
        if first:
            if warning := slow_here(stage.precision, self.processes.device, "train.precision"):
                say(warning)
            say(f"{self.steps} updates of {stage.accumulate} rows of {stage.tokens} tokens")
        sums = _Sums(stage.depth, self.processes)
        with bar(STAGE, self.steps, start) if first else nullcontext(lambda _: None) as advance:
            for step in range(start, self.steps):
                rate, gradient = self._update(step, sums)
                done = step + 1
                # At a checkpoint too, so that the next line sums the same updates in a run that was killed there.
                if done % stage.log_every == 0 or done % stage.checkpoint_every == 0 or done == self.steps:
                    loss, reached, right = sums.take()
                    if metrics is not None:
                        line = line_of(done, loss, reached, right, rate=rate, gradient=float(gradient))
                        metrics.write(line)
                        tell(line)
                if first and (done % stage.checkpoint_every == 0 or done == self.steps):
                    checkpoint.save(folder / _CHECKPOINT, done, self.kind.head, self.optimizers)
                advance(1)
        if metrics is not None:
            metrics.close()

    def _update(self, step: int, sums: "_Sums") -> tuple[float, Tensor]:
        """One optimizer step; returns its rate and the norm of the gradient before clipping."""
        stage = self.stage
        level, rates = _level(stage, step, self.steps), (stage.rate, stage.vector_rate or stage.rate)
        for optimizer, rate in zip(self.optimizers, rates, strict=False):  # AdamW alone has the first
            set_rate(optimizer, rate * level)
            optimizer.zero_grad(set_to_none=True)
        for number in self.processes.own(range(step * stage.accumulate, (step + 1) * stage.accumulate)):
            row = self._placed(self.rows.row(number))
            parts = self.kind.judge(number, row)
            while (judged := self._next(parts)) is not None:
                if judged.loss.requires_grad:  # a part without any draft has no gradient
                    (judged.loss / stage.accumulate).backward()
                sums.add(judged)
            sums.rows(1)
        head = self.kind.head
        self.processes.add_gradients(head)
        gradient = nn.utils.clip_grad_norm_(head.parameters(), stage.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        return stage.rate * level, gradient

    def _next(self, parts: Iterator[Judged]) -> Judged | None:
        """Computes and returns the next part of a row, or None after the last."""
        with self._arithmetic():
            return next(parts, None)

    def _placed(self, row: Row) -> Lesson:
        device = self.processes.device
        final = row.final.to(device)
        logits = self.end.logits(final)
        taps, documents = row.taps.to(device).float(), row.documents.to(device)
        return Lesson(row.ids.to(device), row.answer.to(device), taps, logits, documents, final.float())

    def _arithmetic(self) -> AbstractContextManager[object]:
        if self.stage.precision == "float32":
            return nullcontext()
        return torch.autocast(self.processes.device.type, torch.bfloat16)


class _Sums:
    """Loss and counts since the last line, on the device: nothing waits for them between lines."""

    def __init__(self, depth: int, processes: Processes) -> None:
        self._processes = processes
        self._counts = torch.zeros(2, depth, dtype=torch.int64, device=processes.device)
        self._loss = torch.zeros(2, dtype=torch.float64, device=processes.device)

    def add(self, judged: Judged) -> None:
        """Adds a row, or a part of one."""
        self._counts += torch.stack([judged.reached, judged.right])
        self._loss[0] += judged.loss.detach().double()

    def rows(self, count: int) -> None:
        self._loss[1] += count

    def take(self) -> tuple[float, Tensor, Tensor]:
        """Mean loss of a row and counts by depth, over all processes; resets the sums."""
        counts, loss = self._processes.add(self._counts.clone()), self._processes.add(self._loss.clone())
        self._counts.zero_()
        self._loss.zero_()
        reached, right = counts.cpu()
        return float(loss[0] / loss[1]), reached, right


def _level(stage: TrainStage, step: int, steps: int) -> float:
    """The share of the full rates at `step`."""
    if stage.schedule == "cosine":
        return warm_cosine(step, steps=steps, warmup=stage.warmup)
    return share(step, steps=steps, warmup=max(1, round(stage.warmup * steps)), decay=stage.decay)


def _optimizers(stage: TrainStage, head: nn.Module) -> list[Optimizer]:
    """AdamW for everything; with Muon it keeps the output layer and the norms."""
    if stage.optimizer == "adamw":
        learning = [weight for weight in head.parameters() if weight.requires_grad]
        return [torch.optim.AdamW(learning, lr=0.0, betas=stage.betas, weight_decay=stage.weight_decay)]
    decay, precision = stage.weight_decay, dtype_of(stage.precision)
    return divided(head, betas=stage.betas, matrix_decay=decay, vector_decay=decay, precision=precision)
