"""Two workers of one tiny pair, on kernels alike but for whole steps: one takes them in a call, the other in the twins'
many. Sizes are such that the kernels can walk through target and head.
"""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts.config import parse_config
from contracts.step import PrefillWork, StepKind, StepOutput
from engine.decode_step import decode_step
from engine.kernels.switch import take_kernels
from engine.prefill_step import prefill_step
from spec.build import build_worker
from spec.draft_step import draft_step
from spec.follow_step import follow_step
from spec.worker import SpecWorker
from tests.engine.rounds import Rounds, Row
from tests.spec import models

WHOLE: tuple[Any, ...] = (decode_step, prefill_step, draft_step, follow_step)
FIELDS = ("token_ids", "counts", "accepted", "drafted", "lengths", "endings")


def write_pair(folder: Path, **head: Any) -> tuple[Path, Path]:
    """Weights are bf16 numbers, whatever they are computed in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "HEAD_DIM", 16)
        rounded = models.random_tensors

        def in_halves(*given: Any, **named: Any) -> dict[str, torch.Tensor]:
            return {name: tensor.bfloat16() for name, tensor in rounded(*given, **named).items()}

        patch.setattr(models, "random_tensors", in_halves)
        target = models.write_target(folder / "target")
        extra = head.pop("extra", None)
        tensors = models.safeailab_names(models.head_tensors(draft_vocabulary=32, extra=extra)) | models.draft_maps(32)
        return target, models.write(folder / "head", models.specforge_config(draft_vocabulary=32, **head), tensors)


def make_worker(pair: tuple[Path, Path], dtype: str, **spec: Any) -> SpecWorker:
    target, head = pair
    limits = {"depth": 6, "topk": 4, "nodes": 32, "draft_temperature": float("inf")}
    data = {
        "model": {"path": str(target), "dtype": dtype},
        "engine": {"kv_tokens": 6144, "page_size": 4, "kernels": "cpp"},
        "scheduler": {"max_running": 8},
        "spec": {"head": str(head)} | limits | spec,
    }
    made = build_worker(parse_config(data))
    assert isinstance(made, SpecWorker)
    return made


def read(rounds: Rounds, rows: list[Row], counts: list[int]) -> StepOutput:
    """A chunk of each row's prompt in one step; a row's first brings its tables, its last its first token."""
    lasts = [row.length + count == len(row.prompt) for row, count in zip(rows, counts, strict=True)]
    parts = [row.prompt[row.length : row.length + count] for row, count in zip(rows, counts, strict=True)]
    after = [-1 if last else row.prompt[row.length + n] for row, n, last in zip(rows, counts, lasts, strict=True)]
    new = [row for row in rows if row.length == 0]
    output = rounds._step(
        rows,
        StepKind.PREFILL,
        PrefillWork(
            token_ids=np.array([token for part in parts for token in part], np.int32),
            starts=np.array([row.length for row in rows], np.int32),
            counts=np.array(counts, np.int32),
            is_last=np.array(lasts),
            next_ids=np.array(after, np.int32),
        ),
        None,
        _joined([rounds._starts(row) for row in new]) if new else None,
        _joined([rounds._pages(row) for row in new]) if new else None,
    )
    rounds._take(rows, output)
    for row, last in zip(rows, lasts, strict=True):
        row.turn = 1 - row.turn if last else row.turn
    return output


def _joined(parts: list[Any]) -> Any:
    names = [field.name for field in fields(parts[0])]
    return type(parts[0])(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


class Pair:
    """Does everything twice, and compares: numbers may be `apart`."""

    def __init__(self, make: Callable[[], SpecWorker], *, apart: float = 0.0) -> None:
        self._apart = apart
        take_kernels("cpp", torch.device("cpu"))
        self.workers = [make(), make()]
        self.rounds = [Rounds(worker) for worker in self.workers]

    def each(self, act: Callable[[Rounds], Any], *, only: bool = False) -> list[Any]:
        """What `act` gives with the twins, and with one call, which must answer itself where nothing else may."""
        found = []
        for language, rounds in zip((None, "cpp"), self.rounds, strict=True):
            with pytest.MonkeyPatch.context() as patch:
                for step in WHOLE:
                    step.take(language)
                    if only and language is not None:
                        patch.setattr(step, "twin", None)
                found.append(act(rounds))
        return found

    def decode(self, rows: list[list[Any]], *, only: bool = True, **shape: int) -> StepOutput:
        """A step of both workers' rows, which must leave the same behind, bit for bit."""
        outputs = self.each(lambda rounds: rounds.decode(rows[self.rounds.index(rounds)], **shape), only=only)
        return self.same(rows, *outputs)

    def same(self, rows: list[list[Any]], twin: StepOutput, whole: StepOutput) -> StepOutput:
        known = np.arange(twin.token_ids.shape[1]) < twin.counts[:, None]
        for name in FIELDS:
            expected, found = getattr(twin, name), getattr(whole, name)
            if name == "token_ids":
                expected, found = np.where(known, expected, 0), np.where(known, found, 0)
            np.testing.assert_array_equal(found, expected, err_msg=name)
            assert found.dtype == expected.dtype
        self.same_futures(rows)
        self.same_pools(rows)
        return whole

    def read(self, rows: list[list[Any]], counts: list[int]) -> StepOutput:
        """A step that reads so many more tokens of each row's prompt."""
        outputs = self.each(lambda rounds: read(rounds, rows[self.rounds.index(rounds)], counts), only=True)
        return self.same(rows, *outputs)

    def same_futures(self, rows: list[list[Any]]) -> None:
        """What the next step would read of rows that go on."""
        open_rows = [row for row in rows[0] if row.out and not row.done]
        turns, places = ([getattr(row, name) for row in open_rows] for name in ("turn", "index"))
        left, right = (worker._state.futures for worker in self.workers)
        for name in ("bonus", "lengths", "done", "seeds"):
            self._same(getattr(left, name)[turns, places], getattr(right, name)[turns, places])

    def same_pools(self, rows: list[list[Any]]) -> None:
        for row in rows[0]:
            slots = self.workers[0]._state.tables.slots(torch.full((row.length,), row.index), torch.arange(row.length))
            for pools in ([worker._state.target.pool for worker in self.workers], [w._head.pool for w in self.workers]):
                for side in ("keys", "values"):
                    one, other = (getattr(pool, side)[:, slots] for pool in pools)
                    self._same(one, other)

    def _same(self, one: torch.Tensor, other: torch.Tensor) -> None:
        torch.testing.assert_close(other, one, atol=self._apart, rtol=self._apart)
