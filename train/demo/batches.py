"""Conversations as token ids with marked answers, and the padded batches that training reads."""

from dataclasses import dataclass

import torch
from torch import Tensor

_MULTIPLE = 16
"""Of which a batch's width is one: torch's attention on CPUs takes up to eight times as long at widths between."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One conversation: its ids, and for each id whether it belongs to an answer (the closing `<|end|>` included)."""

    ids: list[int]
    answer: list[bool]

    @property
    def reply(self) -> list[int]:
        """The ids of its answers."""
        return [token for token, is_answer in zip(self.ids, self.answer, strict=True) if is_answer]


@dataclass(frozen=True, slots=True)
class Batch:
    """`ids` [rows, length] right-padded, `answer` [rows, length] bool, False on padding."""

    ids: Tensor
    answer: Tensor

    def to(self, device: torch.device) -> "Batch":
        return Batch(self.ids.to(device), self.answer.to(device))


def padded(samples: list[Sample], longest: int) -> Batch:
    """One batch, as wide as its longest sample and as attention likes, but at most `longest`."""
    width = _width(max(len(sample.ids) for sample in samples), longest)
    ids = torch.zeros(len(samples), width, dtype=torch.long)
    answer = torch.zeros(len(samples), width, dtype=torch.bool)
    for row, sample in enumerate(samples):
        size = min(width, len(sample.ids))
        ids[row, :size] = torch.tensor(sample.ids[:size])
        answer[row, :size] = torch.tensor(sample.answer[:size])
    return Batch(ids, answer)


def _width(length: int, longest: int) -> int:
    return min(longest, -length // _MULTIPLE * -_MULTIPLE)
