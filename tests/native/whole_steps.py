"""Two workers of one tiny pair, on the same kernels: one takes whole steps in a call, the other is what it falls back
on. Sizes are such that the kernels can walk through target and head.
"""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aerie.contracts.config import parse_config
from aerie.contracts.step import PrefillWork, StepKind, StepOutput
from aerie.engine.bindings import Kernels
from aerie.native.kernels.table import cpp_kernels
from aerie.native.worker import NativeWorker, native_worker
from aerie.spec.build import build_worker
from aerie.spec.worker import SpecWorker
from tests.engine.rounds import Rounds, Row
from tests.spec import models

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


def make_worker(pair: tuple[Path, Path], dtype: str, kernels: Kernels | None = None, **spec: Any) -> SpecWorker:
    target, head = pair
    limits = {"depth": 6, "topk": 4, "nodes": 32, "draft_temperature": float("inf")}
    data = {
        "model": {"path": str(target), "dtype": dtype},
        "engine": {"kv_tokens": 6144, "page_size": 4, "kernels": "cpp"},
        "scheduler": {"max_running": 8},
        "spec": {"head": str(head)} | limits | spec,
    }
    made = build_worker(parse_config(data), kernels or cpp_kernels())
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
        row.generation = 1 - row.generation if last else row.generation
    return output


def _joined(parts: list[Any]) -> Any:
    """Of one kind: arrays, lists, what holds arrays by name, or nothing."""
    first = parts[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if first is None:
        return None
    if isinstance(first, list):
        return [one for part in parts for one in part]
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts]) for name in first}
    return type(first)(*(_joined([getattr(part, field.name) for part in parts]) for field in fields(first)))


class Pair:
    """Does everything twice, and compares."""

    def __init__(self, make: Callable[[], SpecWorker]) -> None:
        self.workers = [make(), make()]
        native = native_worker(self.workers[1])
        assert native is not None
        self.native: NativeWorker = native
        self.rounds = [Rounds(self.workers[0]), Rounds(native)]

    def each(self, act: Callable[[Rounds], Any], *, only: bool = False) -> list[Any]:
        """What `act` gives with the fallback, and with whole steps, which must not fall back where nothing else may."""
        with pytest.MonkeyPatch.context() as patch:
            if only:
                patch.setattr(self.workers[1], "run", None)
            return [act(rounds) for rounds in self.rounds]

    def decode(self, rows: list[list[Any]], *, only: bool = True, **shape: int) -> StepOutput:
        """A step of both workers' rows, which must leave the same behind, bit for bit."""
        outputs = self.each(lambda rounds: rounds.decode(rows[self.rounds.index(rounds)], **shape), only=only)
        return self.same(rows, *outputs)

    def same(self, rows: list[list[Any]], piecewise: StepOutput, whole: StepOutput) -> StepOutput:
        known = np.arange(piecewise.token_ids.shape[1]) < piecewise.counts[:, None]
        for name in FIELDS:
            expected, found = getattr(piecewise, name), getattr(whole, name)
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
        generations, places = ([getattr(row, name) for row in open_rows] for name in ("generation", "index"))
        left, right = (worker.state.futures for worker in self.workers)
        for name in ("bonus", "lengths", "done", "seeds"):
            self._same(getattr(left, name)[generations, places], getattr(right, name)[generations, places])

    def same_pools(self, rows: list[list[Any]]) -> None:
        for row in rows[0]:
            slots = self.workers[0].state.tables.slots(torch.full((row.length,), row.index), torch.arange(row.length))
            for pools in (
                [worker.state.target.pool for worker in self.workers],
                [w.drafter.head.pool for w in self.workers],
            ):
                for side in ("keys", "values"):
                    one, other = (getattr(pool, side)[:, slots] for pool in pools)
                    self._same(one, other)

    def _same(self, one: torch.Tensor, other: torch.Tensor) -> None:
        torch.testing.assert_close(other, one, atol=0, rtol=0)
