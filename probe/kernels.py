"""`aerie probe kernels`: the cost of one multiplication with the target's matrices in each layout, by tokens.

Matrices are random bf16 numbers of the target's shapes, with as many copies as it has layers: a step reads each weight
once, so a matrix that stays in a cache would flatter every layout. Called by the command line.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.model.config import ModelConfig
from aerie.engine.model.packing import HalfPacked
from aerie.engine.model.projection import Projection

Cell = dict[str, Any]
Multiply = Callable[[Tensor], Tensor]
TOKENS = (1, 2, 4, 8, 16, 32, 64)
_LAYOUTS = ("rows", "columns", "fp16", "served")


@torch.inference_mode()
def measure_kernels(
    model: ModelConfig,
    kernels: Kernels = REFERENCES,
    *,
    tokens: Sequence[int] = TOKENS,
    rounds: int = 5,
    calls: int = 48,
    threads: int = 1,
) -> list[Cell]:
    """Microseconds of one call: the median of `rounds` rounds in which the layouts alternate.

    `fp16` is FBGEMM's packed form if this torch has it; `served` is what engine/model/projection.py chooses with this
    many threads and these kernels.
    """
    torch.set_num_threads(threads)
    cells = []
    for name, (out, wide) in _shapes(model).items():
        weights = [_weight(out, wide) for _ in range(model.layers)]
        ways = {layout: cycle(found) for layout in _LAYOUTS if (found := _multiplies(layout, weights, kernels))}
        for count in tokens:
            x = torch.randn(count, wide)
            taken = {layout: statistics.median(times) for layout, times in _rounds(ways, x, rounds, calls).items()}
            cells += [
                {
                    "matrix": name,
                    "out": out,
                    "in": wide,
                    "tokens": count,
                    "threads": threads,
                    "layout": layout,
                    "microseconds": taken[layout] * 1e6,
                    "over_columns": taken["columns"] / taken[layout],
                }
                for layout in ways
            ]
    return cells


def _rounds(ways: Mapping[str, Iterator[Multiply]], x: Tensor, rounds: int, calls: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {layout: [] for layout in ways}
    for _ in range(rounds):
        for layout, multiplies in ways.items():
            next(multiplies)(x)
            began = time.perf_counter()
            for _ in range(calls):
                next(multiplies)(x)
            times[layout].append((time.perf_counter() - began) / calls)
    return times


def _multiplies(layout: str, weights: list[Tensor], kernels: Kernels) -> list[Multiply]:
    if layout == "served":
        return [Projection(weight, kernels=kernels) for weight in weights]
    if layout == "fp16":
        packed = [form for form in map(HalfPacked.of, weights) if form is not None]
        return [partial(form, bias=None) for form in packed]
    return [_product(weight.t().contiguous() if layout == "columns" else weight.t()) for weight in weights]


def _product(matrix: Tensor) -> Multiply:
    return lambda x: x.mm(matrix)


def _weight(out: int, wide: int) -> Tensor:
    return (torch.randn(out, wide) * wide**-0.5).bfloat16().float()


def _shapes(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """[out, in] of the merged matrices of a layer."""
    heads = (model.heads + 2 * model.kv_heads) * model.head_dim
    return {
        "qkv": (heads, model.hidden_size),
        "output": (model.hidden_size, model.heads * model.head_dim),
        "gate_up": (2 * model.intermediate_size, model.hidden_size),
        "down": (model.hidden_size, model.intermediate_size),
    }
