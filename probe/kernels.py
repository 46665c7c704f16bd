"""`aerie probe kernels`: the cost of multiplying by the target's matrices, in Aerie's layout and in those of torch, by
tokens and by the instruction set that both are limited to.

Matrices are random bf16 numbers of the target's shapes. A step reads each weight once, so each matrix has as many
copies as the target has layers, or as memory allows: one that stays in a cache would flatter every layout. Called by
the command line; each instruction set is measured in a process of its own, which this file is the main program of.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from aerie.engine.model.packing import HalfPacked
from aerie.native.choice import choose
from aerie.native.library import library, library_name, missing
from aerie.native.march import LEVELS, lacking
from aerie.native.trials import FP16, PANELS, PanelTrial, TorchTrial, Trial, tile_sizes

Cell = dict[str, Any]
TOKENS = (1, 2, 4, 8, 16, 32, 64)
_COPIES = 1 << 25
"""Weights of all copies of a matrix, unless one alone has more."""
_FLOATS, _ROUNDS = 1 << 25, 1 << 17
"""What the limits of the CPU are measured with: floats to read, and multiply-adds of each sum."""
_TORCH_LIMITS = {
    "x86-64-v2": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "x86-64-v3": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2",
    },
}
"""Variables that limit torch's libraries to the instructions of a level."""


@dataclass(frozen=True, slots=True)
class Measure:
    shapes: dict[str, tuple[int, int]]
    """[out, in] by name."""
    layers: int
    tokens: Sequence[int] = TOKENS
    rounds: int = 5
    work: float = 5e7
    """Multiply-adds of a layout in a round, unless one pass over all copies has more."""
    threads: int = 1
    fp16: bool = True
    """Whether FBGEMM's product, which needs AVX2, is measured."""


def measure_marches(measure: Measure, marches: Sequence[str]) -> list[Cell]:
    """The cells of `measure_kernels` for each level of LEVELS that this CPU can run."""
    cells: list[Cell] = []
    for march in marches:
        if lacking(LEVELS[march]) is None:
            given = asdict(measure) | {"fp16": "avx2" in LEVELS[march].features}
            done = subprocess.run(
                [sys.executable, "-m", __name__, json.dumps(given)],
                env=os.environ | {"AERIE_MARCH": march} | _TORCH_LIMITS.get(march, {}),
                stdout=subprocess.PIPE,
                check=True,
            )
            cells += [{"march": march} | cell for cell in json.loads(done.stdout)]
    return cells


@torch.inference_mode()
def measure_kernels(measure: Measure) -> list[Cell]:
    """The least microseconds of one multiplication, over rounds in which the layouts alternate; Aerie's are called as
    in a step, all matrices in one call. Shares are of the most multiply-adds and bytes a second that one thread did
    in registers and from memory in any round. `over_torch` is over the best of torch's layouts; `of_best_choice`, of
    what serves by default, over the best that could be chosen.
    """
    torch.set_num_threads(measure.threads)
    ours = missing() is None
    if ours:
        library().use_threads(measure.threads)
    cells = []
    for name, (out, wide) in measure.shapes.items():
        copies = max(1, min(measure.layers, _COPIES // (out * wide)))
        weights = [_weight(out, wide) for _ in range(copies)]
        trials = _trials(weights, fp16=measure.fp16)
        chosen = _chosen(measure) if ours else None
        for count in measure.tokens:
            passes = max(1, round(measure.work / (out * wide * count * copies)))
            least, peak, bandwidth = _least(trials, count, passes, measure.rounds, limits=ours)
            seconds = {layout: taken / passes / copies for layout, taken in least.items()}
            theirs = min(taken for layout, taken in seconds.items() if not _is_ours(layout))
            best = min(taken for layout, taken in seconds.items() if not ours or layout == FP16 or _is_ours(layout))
            cells += [
                {
                    "matrix": name,
                    "out": out,
                    "in": wide,
                    "tokens": count,
                    "threads": measure.threads,
                    "layout": layout,
                    "microseconds": taken * 1e6,
                    "gmacs": out * wide * count / taken / 1e9,
                    "of_peak": None if peak is None else out * wide * count / taken / peak,
                    "of_bandwidth": None if bandwidth is None else _bytes(layout) * out * wide / taken / bandwidth,
                    "over_columns": seconds["columns"] / taken,
                    "over_torch": theirs / taken,
                    "of_best_choice": best / taken if layout == chosen else None,
                    "kernel_set": library_name() if _is_ours(layout) else None,
                }
                for layout, taken in seconds.items()
            ]
    return cells


def _is_ours(layout: str) -> bool:
    return layout.startswith(PANELS)


def _bytes(layout: str) -> int:
    """Of a weight."""
    return 2 if layout == FP16 or _is_ours(layout) else 4


def _chosen(measure: Measure) -> str:
    """The layout that serves this model by default."""
    way = choose(list(measure.shapes.values()), measure.layers, threads=measure.threads, pinned=True).way
    return _tiled(way.tile_rows) if way.product == PANELS else FP16


def _tiled(rows: int) -> str:
    return f"{PANELS} in tiles of {rows}"


@dataclass(frozen=True, slots=True)
class _Tiled:
    """Aerie's own products in tiles of up to so many tokens."""

    trial: PanelTrial
    rows: int

    def prepare(self, tokens: int) -> Callable[[], None]:
        run = self.trial.prepare(tokens)

        def tiled() -> None:
            library().use_tile_rows(self.rows)
            run()

        return tiled


def _least(
    trials: Mapping[str, Trial | _Tiled], count: int, passes: int, rounds: int, *, limits: bool
) -> tuple[dict[str, float], float | None, float | None]:
    """The least seconds of each layout's passes, and the CPU's most multiply-adds and bytes a second."""
    runs = {layout: trial.prepare(count) for layout, trial in trials.items()}
    least = dict.fromkeys(runs, float("inf"))
    numbers, peak, bandwidth = torch.full((64,), 1e-3), 0.0, 0.0
    floats = torch.zeros(_FLOATS if limits else 0)
    for number in range(rounds + 1):  # the first warms up
        for layout, run in runs.items():
            taken = _seconds(run, passes if number else 1)
            least[layout] = min(least[layout], taken) if number else float("inf")
        if limits:
            began = time.perf_counter()
            done = library().multiply_adds(numbers.fill_(1e-3).data_ptr(), _ROUNDS)
            between = time.perf_counter()
            library().read_through(floats.data_ptr(), floats.numel())
            peak = max(peak, done / (between - began))
            bandwidth = max(bandwidth, 4 * floats.numel() / (time.perf_counter() - between))
    return least, peak or None, bandwidth or None


def _seconds(run: Callable[[], None], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        run()
    return time.perf_counter() - began


def _trials(weights: list[Tensor], *, fp16: bool) -> dict[str, Trial | _Tiled]:
    trials: dict[str, Trial | _Tiled] = {
        "rows": TorchTrial([_product(weight.t()) for weight in weights], weights),
        "columns": TorchTrial([_product(weight.t().contiguous()) for weight in weights], weights),
    }
    if fp16 and (packed := [form for form in map(HalfPacked.of, weights) if form is not None]):
        trials[FP16] = TorchTrial([partial(form, bias=None) for form in packed], weights)
    with suppress(RuntimeError, AttributeError):  # a torch without MKL
        trials["mkl"] = TorchTrial([_MklPacked(weight) for weight in weights], weights)
    if missing() is None:
        panels = PanelTrial(weights)
        trials |= {_tiled(rows): _Tiled(panels, rows) for rows in tile_sizes()}
    return trials


def _product(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: x.mm(matrix)


class _MklPacked:
    """MKL's packed form, which is for one number of tokens."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self._packed: tuple[int, Tensor] = (1, self._pack(1))

    def _pack(self, tokens: int) -> Tensor:
        packed: Tensor = torch.ops.mkl._mkl_reorder_linear_weight(self._weight.to_mkldnn(), tokens)
        return packed

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] != self._packed[0]:
            self._packed = (x.shape[0], self._pack(x.shape[0]))
        product: Tensor = torch.ops.mkl._mkl_linear(x, self._packed[1], self._weight, None, x.shape[0])
        return product


def _weight(out: int, wide: int) -> Tensor:
    return (torch.randn(out, wide) * wide**-0.5).bfloat16().float()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure_kernels(Measure(**json.loads(sys.argv[1])))))
