"""Configs, passes and drivers for the tests of SGLang's models under Aerie's scheduler."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aerie.contracts.config import Config, parse_config
from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.build import load_target, read_target
from aerie.engine.memory import plan_sizes
from aerie.engine.model.target import TargetModel, TargetOutput

PAGE = 16
PAGES = 24


def sglang_config(folder: Path, **changes: dict[str, Any]) -> Config:
    """fp32 on the CPU, one thread; `changes` by section."""
    data: dict[str, Any] = {
        "model": {"path": str(folder), "dtype": "float32"},
        "engine": {"kind": "sglang-model", "device": "cpu", "kv_tokens": PAGE * PAGES, "page_size": PAGE},
        "scheduler": {"max_running": 4},
        "spec": {"head": "none"},
    }
    for section, values in changes.items():
        data[section] = data.get(section, {}) | values
    return parse_config(data)


def load(
    folder: Path, boundaries: tuple[int, ...] = (), *, kind: str = "sglang-model", **changes: dict[str, Any]
) -> Any:
    """A target of `folder`, by SGLang or by the native decoder."""
    config = sglang_config(folder, engine={"kind": kind}, model={"max_length": 128}, **changes)
    shape = read_target(config)
    return load_target(config, shape, plan_sizes(config, shape, reserve=16), boundaries)


@dataclass
class Rows:
    """Token sequences in pages of their own, passed through a target by hand. Row r has pages 1 + 4r and on."""

    target: TargetModel
    spare: int = 0
    """Positions beyond the true ones that the page lists cover, as an upper bound does."""

    def run(
        self,
        rows: list[int],
        lengths: list[int],
        tokens: list[list[int]],
        *,
        depths: list[list[int]] | None = None,
        words: Tensor | None = None,
        wanted: Tensor | None = None,
    ) -> TargetOutput:
        """tokens[i] of row rows[i] after its `lengths[i]` positions; `depths` and `words` make them a tree."""
        counts = [len(own) for own in tokens]
        places = [torch.arange(count) for count in counts]
        depths = depths or [place.tolist() for place in places]
        prefix = torch.tensor(lengths, dtype=torch.int64)
        positions = torch.cat([start + torch.tensor(own) for start, own in zip(lengths, depths, strict=True)])
        slots = torch.cat(
            [(1 + 4 * row) * PAGE + start + place for row, start, place in zip(rows, lengths, places, strict=True)]
        )
        covered = [start + count + self.spare for start, count in zip(lengths, counts, strict=True)]
        page_counts = [-(-cover // PAGE) for cover in covered]
        inputs = AttentionInputs(
            qo_indptr=_indptr(counts),
            kv_indptr=_indptr(page_counts),
            kv_indices=torch.cat(
                [
                    torch.arange(1 + 4 * row, 1 + 4 * row + count, dtype=torch.int32)
                    for row, count in zip(rows, page_counts, strict=True)
                ]
            ),
            last_page_len=torch.tensor(
                [cover - (count - 1) * PAGE for cover, count in zip(covered, page_counts, strict=True)],
                dtype=torch.int32,
            ),
            prefix_lens=prefix,
            words=words,
            page_size=PAGE,
        )
        ids = torch.tensor([token for own in tokens for token in own])
        with torch.inference_mode():
            return self.target.forward(ids, positions, slots, inputs, wanted, taps=bool(self.target.boundaries))


def _indptr(counts: list[int]) -> Tensor:
    return torch.tensor([0, *counts], dtype=torch.int32).cumsum(0).int()


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Of values up to 1, or as a share of the largest where that is more. Fails with the largest difference."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    scale = max(1.0, float(expected.abs().max()))
    difference = float((found.float() - expected.float()).abs().max()) / scale
    assert difference <= tolerance, f"differs by {difference:.3e} of {scale:.3g}, more than {tolerance:.0e}"
