"""The training loop: batches without end, a schedule, checkpoints, and an exact resume.

Called by `variants`. A killed run resumes from its last checkpoint with the same batches
in the same order and ends with the same bytes.
"""

import random
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from aerie.train.demo.batches import Batch
from aerie.train.heads.loss import Judged, acceptance_length
from aerie.train.optimization import checkpoint
from aerie.train.optimization.optimizers import divided
from aerie.train.optimization.schedule import set_rate, share

_REPORT_EVERY = 25

Key = TypeVar("Key", bound=Hashable)
"""Identifies a batch."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The training schedule; rates are those of Muon for matrices and of AdamW for the rest."""

    steps: int
    matrix_rate: float
    vector_rate: float
    warmup: int
    decay: float
    clip: float
    checkpoint_every: int


def descend(
    model: nn.Module,
    schedule: Schedule,
    work: Path,
    found: Sequence[Batch],
    seed: int,
    judge: Callable[[int, int, Batch], Iterable[Judged]],
    note: Callable[[int, Judged], None],
) -> None:
    """Trains on the same batches in every epoch, each identified by its number."""
    descend_along(model, schedule, work, lambda skip: shuffled(found, seed=seed, skip=skip), judge, note)


def descend_along(
    model: nn.Module,
    schedule: Schedule,
    work: Path,
    ahead: Callable[[int], Iterator[tuple[Key, Batch]]],
    judge: Callable[[int, Key, Batch], Iterable[Judged]],
    note: Callable[[int, Judged], None],
) -> None:
    """Trains on the endless batches of `ahead(skip)`, each with its key; the first `skip` are left out.

    `judge(step, key, batch)` yields the batch's losses; backward runs on each before the next is computed. Checkpoints
    are in `work`.
    """
    optimizers = divided(model)
    start = checkpoint.load(work, model, optimizers)
    coming = ahead(start)
    for step in range(start, schedule.steps):
        level = share(step, steps=schedule.steps, warmup=schedule.warmup, decay=schedule.decay)
        for optimizer, rate in zip(optimizers, (schedule.matrix_rate, schedule.vector_rate), strict=True):
            set_rate(optimizer, rate * level)
        key, batch = next(coming)
        for judged in judge(step, key, batch):
            if judged.loss.requires_grad:
                judged.loss.backward()
            note(step + 1, judged)
        _update(model, optimizers, schedule.clip)
        if (step + 1) % schedule.checkpoint_every == 0 or step + 1 == schedule.steps:
            checkpoint.save(work, step + 1, model, optimizers)


class Tally:
    """Sums counts over batches: how often a draft was right where all drafts before it were."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self.clear()

    def clear(self) -> None:
        self.loss = 0.0
        self.reached, self.right = torch.zeros(2, self._depth, dtype=torch.int64)

    def add(self, judged: Judged) -> None:
        """Adds counts; `judged` may have fewer depths."""
        depth = len(judged.reached)
        self.loss += judged.loss.item()
        self.reached[:depth] += judged.reached
        self.right[:depth] += judged.right

    @property
    def accuracies(self) -> tuple[float, ...]:
        return tuple(map(float, self.right / self.reached.clamp(min=1)))

    def line(self) -> str:
        accuracies = " ".join(f"{share:.3f}" for share in self.accuracies)
        return f"accuracies {accuracies} length {acceptance_length(self.reached, self.right):.2f}"


class Progress:
    """Periodically prints the progress of a run."""

    def __init__(self, depth: int) -> None:
        self._tally, self._began, self._last, self._steps = Tally(depth), time.monotonic(), 0, 0

    def add(self, step: int, judged: Judged) -> None:
        """Adds one part of a step's batch."""
        if step != self._last:
            self._last, self._steps = step, self._steps + 1
            if step % _REPORT_EVERY == 1 and self._steps > 1:
                seconds = time.monotonic() - self._began
                loss = self._tally.loss / (self._steps - 1)
                print(f"step {step - 1} loss {loss:.3f} {self._tally.line()} seconds {seconds:.0f}", flush=True)
                self._tally.clear()
                self._steps = 1
        self._tally.add(judged)


def shuffled(found: Sequence[Batch], *, seed: int, skip: int) -> Iterator[tuple[int, Batch]]:
    """The same batches without end, each with its number, reshuffled every epoch; the first `skip` are left out."""
    epoch = 0
    while True:
        order = random.Random(f"{seed} order {epoch}").sample(range(len(found)), len(found))
        for number in order[skip:]:
            yield number, found[number]
        skip, epoch = max(0, skip - len(order)), epoch + 1


def _update(model: nn.Module, optimizers: list[Optimizer], clip: float) -> None:
    for weight in model.parameters():
        if weight.requires_grad and weight.grad is None:  # a batch without any draft
            weight.grad = torch.zeros_like(weight)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
