"""Turns what a step committed on the device into the contract's arrays: one copy of int32 words, and one reader.

Called by both workers. A `Pending` is a StepOutput in transit: `output` waits for it, and for no later work.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.contracts.step import DraftedTrees, Ints, Logprobs, StepOutput, StepPlan
from aerie.engine.state.transfer import Fetch, Transfer
from aerie.engine.step.clock import ReadTimes
from aerie.engine.step.passes import PassResult, Ranked

Shapes = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a step committed for `rows` rows. On the device; the first dimension is the row."""

    tokens: Tensor
    """[rows, w]"""
    counts: Tensor
    lengths: Tensor
    endings: Tensor
    """[rows], as `counts` and `lengths`; `accepted` and `drafted` too."""
    accepted: Tensor | None = None
    """None if nothing was drafted; `drafted` likewise."""
    drafted: Tensor | None = None
    ranked: Ranked | None = None
    """[rows, w], [rows, w, count] twice."""
    trees: tuple[Tensor, Tensor] | None = None
    """Tokens and parents [rows, M]."""

    def parts(self) -> list[Tensor]:
        """All tensors, in the order in which `Coming` reads them."""
        found = [self.tokens, self.counts, self.lengths, self.endings]
        for group in ((self.accepted, self.drafted), self.ranked, self.trees):
            found += [part for part in group or () if part is not None]
        return found

    def words(self) -> Tensor:
        """[words] int32; floats keep their bits."""
        return torch.cat(
            [(p.float().view(torch.int32) if p.is_floating_point() else p.int()).reshape(-1) for p in self.parts()]
        )


class Pending(Protocol):
    def proceed(self) -> None:
        """Launches what is left of the step. Call it once the step before has been settled."""

    def output(self) -> StepOutput:
        """Waits until the answer has arrived. Call it once; proceeds first."""


@dataclass(frozen=True, slots=True)
class Coming:
    """An answer in transit to the host."""

    number: int
    rows: int
    width: int
    """Columns that the plan promised."""
    fetch: Fetch
    shapes: Shapes
    drafts: bool
    logprobs: bool
    trees: bool
    times: ReadTimes

    def proceed(self) -> None:
        """All of the step has been launched."""

    def output(self) -> StepOutput:
        parts = _split(self.fetch(), self.shapes)
        tokens, counts, lengths, endings = (next(parts) for _ in range(4))
        nothing = np.zeros(self.rows, dtype=np.int32)
        accepted, drafted = (next(parts), next(parts)) if self.drafts else (nothing, nothing)
        logprobs = self._logprobs(parts) if self.logprobs else None
        trees = DraftedTrees(next(parts), next(parts)) if self.trees else None
        times = self.times()
        return StepOutput(
            number=self.number,
            token_ids=_widened(tokens, self.width)[: self.rows],
            counts=counts[: self.rows],
            accepted=np.minimum(accepted, counts)[: self.rows] if self.drafts else nothing,
            drafted=drafted[: self.rows],
            lengths=lengths[: self.rows],
            endings=endings[: self.rows],
            logprobs=logprobs,
            trees=trees,
            phase_seconds=times.phases,
            busy_seconds=times.busy,
            began=times.began,
            ended=times.ended,
        )

    def _logprobs(self, parts: Iterator[Ints]) -> Logprobs:
        chosen, ids, ranks = (_widened(next(parts), self.width) for _ in range(3))
        return Logprobs(chosen.view(np.float32), ids, ranks.view(np.float32))


def send(answer: Answer, transfer: Transfer, plan: StepPlan, times: ReadTimes, words: Tensor | None = None) -> Pending:
    """The answer's first rows are the plan's. A graph passes `words` that it has made of the answer."""
    return Coming(
        number=plan.number,
        rows=plan.rows.size,
        width=1 if plan.decode is None else plan.decode.depth + 1,
        fetch=transfer.fetch(answer.words() if words is None else words),
        shapes=[tuple(part.shape) for part in answer.parts()],
        drafts=answer.accepted is not None,
        logprobs=answer.ranked is not None,
        trees=answer.trees is not None,
        times=times,
    )


def plain_answer(result: PassResult) -> Answer:
    """The answer of a pass that drafted nothing."""
    ranked = result.ranked
    return Answer(
        tokens=result.tokens[:, None],
        counts=result.committed.counts,
        lengths=result.lengths,
        endings=result.committed.endings,
        ranked=None if ranked is None else (ranked[0][:, None], ranked[1][:, None], ranked[2][:, None]),
    )


def _split(words: NDArray[np.int32], shapes: Shapes) -> Iterator[Ints]:
    first = 0
    for shape in shapes:
        end = first + math.prod(shape)
        yield words[first:end].reshape(shape)
        first = end


def _widened(values: Ints, width: int) -> Ints:
    """[rows, w, ...] -> [rows, width, ...]. A recording of deeper drafts has columns that nothing is committed to."""
    missing = width - values.shape[1]
    if missing <= 0:
        return values[:, :width]
    return np.pad(values, [(0, 0), (0, missing), *[(0, 0)] * (values.ndim - 2)])
