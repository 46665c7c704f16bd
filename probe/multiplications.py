"""Times multiplications with one matrix of the target for `aerie probe kernels`: bf16 and 8-bit weights, in Aerie's
layout and in those of torch, by tokens. The main program of a process that `aerie.probe.kernels` starts.

Matrices are random numbers of the target's shapes. A step reads each weight once and all others before it reads that
again. So the copies of a matrix have as many weights as the target's layers, or as memory allows: fewer would stay in a
cache and flatter every layout.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from aerie.engine.model.matrix import Matrix, rounded
from aerie.native.choice import choose
from aerie.native.library import library, library_name, missing
from aerie.native.pages import LargePages
from aerie.native.products import Multiplier
from aerie.native.trials import FP16, Shape, own_products
from aerie.probe.kernel_cells import Cell, Kernels, Timed, cells_of
from aerie.probe.layouts import BF16, INT8, Layout, layouts_of, named

TOKENS = (1, 2, 4, 8, 16, 32, 64)
_COPIES = 1 << 27
"""Weights of all copies of a matrix, unless one alone has more: more than the last cache of a large CPU holds."""
_PASSES = 4
"""Of one layout after the other, where weights fit a cache: it has them as a step finds them after some of these."""
_FLOATS, _MULTIPLY_ADDS = 1 << 25, 1 << 15
"""What the limits of the CPU are measured with: floats to read, and multiply-adds of each sum."""
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 60


@dataclass(frozen=True, slots=True)
class Measure:
    shapes: dict[str, Shape]
    """By the names of the matrices."""
    layers: int
    tokens: Sequence[int] = TOKENS
    seconds: float = 20.0
    """Of a matrix: no round begins later, but for the least number of them."""
    threads: int = 1
    fp16: bool = True
    """Whether FBGEMM's product, which needs AVX2, is measured."""
    rounds: bool = False
    """Whether Aerie's products may round activations to bf16."""


@torch.inference_mode()
def measure_matrix(measure: Measure, name: str) -> list[Cell]:
    """The least time of one multiplication, over rounds in which all numbers of tokens, precisions and layouts take
    turns: many short runs, of which some had the machine alone. Aerie's are called as in a step, all copies in one
    call. The limits of the CPU are measured in the same rounds.
    """
    torch.set_num_threads(measure.threads)
    ours = missing() is None
    if ours:
        library().use_threads(measure.threads)
    own = own_products(rounds=measure.rounds) if ours else {}
    limits = _Limits(own) if ours else None
    chosen = _chosen(measure, own) if ours else {}
    clock = time.thread_time if measure.threads == 1 else time.perf_counter  # what else runs here costs no CPU time
    timings = _timings(measure, name, own)
    end = time.monotonic() + measure.seconds
    for number in range(_MOST_ROUNDS):
        if number >= _LEAST_ROUNDS and time.monotonic() > end:
            break
        for timing in timings:
            timing.run(clock)
        if limits is not None:
            limits.measure(clock)
    kernels = None
    if limits is not None:
        kernels = Kernels(library_name(), chosen, limits.peaks, limits.bandwidth)
    return cells_of([timing.timed for timing in timings], measure.threads, kernels)


class _Limits:
    """What this CPU can do on one thread."""

    def __init__(self, own: Mapping[str, Multiplier]) -> None:
        self.bandwidth = 0.0
        """Bytes a second, the most so far."""
        self.peaks = dict.fromkeys(own, 0.0)
        """Multiply-adds a second of Aerie's products, the most so far."""
        self._own = own
        self._numbers = torch.full((64,), 1e-3)
        self._floats = LargePages().keep(torch.zeros(_FLOATS))

    def measure(self, clock: Callable[[], float]) -> None:
        for _ in range(4):  # the first ones slow a CPU down that lowers its frequency for them
            self._numbers.fill_(1e-3)
            for product, multiplier in self._own.items():
                began = clock()
                done = self._arithmetic(multiplier)
                self.peaks[product] = max(self.peaks[product], done / (clock() - began))
        began = clock()
        library().read_through(self._floats.data_ptr(), self._floats.numel())
        self.bandwidth = max(self.bandwidth, 4 * self._floats.numel() / (clock() - began))

    def _arithmetic(self, multiplier: Multiplier) -> float:
        """Returns the number of multiply-adds of activations."""
        numbers = self._numbers.data_ptr()
        if multiplier is Multiplier.FP32:
            done = library().multiply_adds(numbers, _MULTIPLY_ADDS)
        elif multiplier is Multiplier.DOTS:
            done = library().dot_products(numbers, _MULTIPLY_ADDS)
        else:
            done = library().amx_products(_MULTIPLY_ADDS) / multiplier.parts
        return float(done)


class _Timing:
    """One precision of a matrix at one number of tokens, in every layout."""

    def __init__(
        self,
        precision: str,
        name: str,
        shape: Shape,
        copies: int,
        tokens: int,
        layouts: Mapping[str, Layout],
    ) -> None:
        self._precision, self._name, self._shape, self._tokens = precision, name, shape, tokens
        self._weights, self._copies = shape[0] * shape[1], copies
        self._passes = _PASSES if copies * self._weights < _COPIES // 2 else 1
        self._runs = {layout: form.prepare(tokens) for layout, form in layouts.items()}
        self._least = dict.fromkeys(layouts, float("inf"))

    def run(self, clock: Callable[[], float]) -> None:
        for layout, run in self._runs.items():
            for _ in range(self._passes):
                began = clock()
                run()
                self._least[layout] = min(self._least[layout], clock() - began)

    @property
    def timed(self) -> Timed:
        seconds = {layout: least / self._copies for layout, least in self._least.items()}
        return Timed(self._precision, self._name, self._shape, self._weights, self._tokens, seconds)


def _timings(measure: Measure, name: str, own: Mapping[str, Multiplier]) -> list[_Timing]:
    out, wide = shape = measure.shapes[name]
    layers = measure.layers * sum(out * wide for out, wide in measure.shapes.values())
    copies = max(1, min(layers, _COPIES) // (out * wide))
    weights: list[Matrix] = [(torch.randn(out, wide) * wide**-0.5).bfloat16().float() for _ in range(copies)]
    by_precision: dict[str, list[Matrix]] = {BF16: weights, INT8: [rounded(weight) for weight in weights]}
    layouts = {precision: layouts_of(forms, own, fp16=measure.fp16) for precision, forms in by_precision.items()}
    return [
        _Timing(precision, name, shape, copies, tokens, layouts[precision])
        for precision in layouts
        for tokens in measure.tokens
    ]


def _chosen(measure: Measure, own: Mapping[str, Multiplier]) -> dict[str, str]:
    """The layouts that serve this model by default, by precision."""
    shapes, found = list(measure.shapes.values()), {}
    for precision in (BF16, INT8):
        integers = precision == INT8
        given = choose(shapes, measure.layers, threads=measure.threads, pinned=True, own=own, integers=integers)
        found[precision] = named(given.way.product, far=given.way.far) if given.way.ours else FP16
    return found


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(measure_matrix(Measure(**given["measure"]), given["matrix"])))
