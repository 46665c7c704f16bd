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
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from aerie.native.choice import choose
from aerie.native.library import library, library_name, missing
from aerie.native.march import LEVELS, lacking
from aerie.native.pages import LargePages
from aerie.native.trials import FP16, PANELS
from aerie.probe.layouts import Layout, bytes_of, is_ours, layouts_of, tiled

Cell = dict[str, Any]
TOKENS = (1, 2, 4, 8, 16, 32, 64)
_COPIES = 1 << 25
"""Weights of all copies of a matrix, unless one alone has more."""
_PASSES = 4
"""Of one layout after the other, where weights fit a cache: it has them as a step finds them after some of these."""
_FLOATS, _MULTIPLY_ADDS = 1 << 25, 1 << 15
"""What the limits of the CPU are measured with: floats to read, and multiply-adds of each sum."""
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 60
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
    seconds: float = 45.0
    """No round begins later, but for the least number of them."""
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
    """The least microseconds of one multiplication, over rounds in which all cells and layouts take turns: many short
    runs, of which some had the machine alone. Aerie's are called as in a step, all matrices in one call. Shares are of
    the most multiply-adds and bytes a second that one thread did in registers and from memory, in the same rounds.
    `over_torch` is over the best of torch's layouts; `of_best_choice`, of what serves by default, over the best that
    could be chosen; `over_one` is the cost over that of one token. The matrix `layer` is the sum of all.
    """
    torch.set_num_threads(measure.threads)
    ours = missing() is None
    if ours:
        library().use_threads(measure.threads)
    limits, chosen = (_Limits(), _chosen(measure)) if ours else (None, None)
    clock = time.thread_time if measure.threads == 1 else time.perf_counter  # what else runs here costs no CPU time
    timings = [timing for name in measure.shapes for timing in _timings(measure, name)]
    end = time.monotonic() + measure.seconds
    for number in range(_MOST_ROUNDS):
        if number >= _LEAST_ROUNDS and time.monotonic() > end:
            break
        for timing in timings:
            timing.run(clock)
        if limits is not None:
            limits.measure(clock)
    layer = [_Sum([timing for timing in timings if timing.count == count]) for count in measure.tokens]
    timed: list[_Timing | _Sum] = [*timings, *layer]
    cells = [cell for each in timed for cell in _cells(each, measure.threads, limits, chosen)]
    one = {(cell["matrix"], cell["layout"]): cell["microseconds"] for cell in cells if cell["tokens"] == 1}
    return [cell | {"over_one": cell["microseconds"] / one[cell["matrix"], cell["layout"]]} for cell in cells]


class _Limits:
    """What this CPU can do on one thread."""

    peak, bandwidth = 0.0, 0.0
    """Multiply-adds and bytes a second, the most so far."""

    def __init__(self) -> None:
        self._numbers = torch.full((64,), 1e-3)
        self._floats = LargePages().keep(torch.zeros(_FLOATS))

    def measure(self, clock: Callable[[], float]) -> None:
        for _ in range(4):  # the first ones slow a CPU down that lowers its frequency for them
            self._numbers.fill_(1e-3)
            began = clock()
            done = library().multiply_adds(self._numbers.data_ptr(), _MULTIPLY_ADDS)
            self.peak = max(self.peak, done / (clock() - began))
        began = clock()
        library().read_through(self._floats.data_ptr(), self._floats.numel())
        self.bandwidth = max(self.bandwidth, 4 * self._floats.numel() / (clock() - began))


class _Timing:
    """One matrix at one number of tokens, in every layout."""

    def __init__(
        self, name: str, shape: tuple[int, int], copies: int, count: int, trials: Mapping[str, Layout]
    ) -> None:
        self.name, self.shape, self.count = name, shape, count
        self.weights = shape[0] * shape[1]
        self._copies = copies
        self._passes = _PASSES if copies * self.weights < _COPIES // 2 else 1
        self._runs = {layout: trial.prepare(count) for layout, trial in trials.items()}
        self._least = dict.fromkeys(trials, float("inf"))

    def run(self, clock: Callable[[], float]) -> None:
        for layout, run in self._runs.items():
            for _ in range(self._passes):
                began = clock()
                run()
                self._least[layout] = min(self._least[layout], clock() - began)

    @property
    def seconds(self) -> dict[str, float]:
        """Of one multiplication, by layout."""
        return {layout: least / self._copies for layout, least in self._least.items()}


class _Sum:
    """All matrices of a layer at one number of tokens."""

    name, shape = "layer", (None, None)

    def __init__(self, timings: Sequence[_Timing]) -> None:
        self.count, self.weights = timings[0].count, sum(timing.weights for timing in timings)
        self.seconds = {layout: sum(timing.seconds[layout] for timing in timings) for layout in timings[0].seconds}


def _cells(timing: _Timing | _Sum, threads: int, limits: _Limits | None, chosen: str | None) -> list[Cell]:
    theirs = min(taken for layout, taken in timing.seconds.items() if not is_ours(layout))
    best = min(taken for layout, taken in timing.seconds.items() if limits is None or layout == FP16 or is_ours(layout))
    return [
        {
            "matrix": timing.name,
            "out": timing.shape[0],
            "in": timing.shape[1],
            "tokens": timing.count,
            "threads": threads,
            "layout": layout,
            "microseconds": taken * 1e6,
            "gmacs": timing.weights * timing.count / taken / 1e9,
            "of_peak": timing.weights * timing.count / taken / limits.peak if limits else None,
            "of_bandwidth": bytes_of(layout) * timing.weights / taken / limits.bandwidth if limits else None,
            "over_columns": timing.seconds["columns"] / taken,
            "over_torch": theirs / taken,
            "of_best_choice": best / taken if layout == chosen else None,
            "kernel_set": library_name() if is_ours(layout) else None,
        }
        for layout, taken in timing.seconds.items()
    ]


def _timings(measure: Measure, name: str) -> list[_Timing]:
    out, wide = shape = measure.shapes[name]
    copies = max(1, min(measure.layers, _COPIES // (out * wide)))
    trials = layouts_of([_weight(out, wide) for _ in range(copies)], fp16=measure.fp16)
    return [_Timing(name, shape, copies, count, trials) for count in measure.tokens]


def _chosen(measure: Measure) -> str:
    """The layout that serves this model by default."""
    way = choose(list(measure.shapes.values()), measure.layers, threads=measure.threads, pinned=True).way
    return tiled(way.tile_rows) if way.product == PANELS else FP16


def _weight(out: int, wide: int) -> Tensor:
    return (torch.randn(out, wide) * wide**-0.5).bfloat16().float()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure_kernels(Measure(**json.loads(sys.argv[1])))))
