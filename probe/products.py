"""Products of few tokens with the matrices of a model, each way that this device has: what a layer's time is made of.

A part of `aerie probe gpu-bench`. Weights are as many copies as make a cache forget them. `inductor` compiles for
seconds for each case, so it is measured at few counts of tokens, once all else is.
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aerie.contracts.config import Config
from aerie.engine.device import device_name, resolve_device
from aerie.engine.device_time import microseconds
from aerie.engine.kernels.product_ways import MOST_TOKENS, ByInductor, Product, by_library, by_torch
from aerie.engine.model.config import ModelConfig, read_model_config
from aerie.probe.ceilings import ceilings_of
from aerie.probe.fused import served_dtype

Cell = dict[str, Any]
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 448)
_COMPILED = (1, 8, 64)
_FORGOTTEN = {"cuda": 256 << 20, "cpu": 1 << 16}
"""Bytes of the copies of a matrix, several times a GPU's cache."""
_MOST_COPIES = 32


def measure_products(
    config: Config, *, tokens: Sequence[int] = TOKENS, repeats: int = 10, say: Callable[[str], None] = lambda _: None
) -> Iterator[Cell]:
    """Microseconds of each way, and its share of the copied bytes per second. Needs no checkpoint."""
    device, model = resolve_device(config), read_model_config(Path(config.model.path))
    dtype = served_dtype(config, model, device)
    bandwidth, _ = ceilings_of(device, dtype)
    for compiled, (name, (outputs, width)) in product((False, True), matrices(model).items()):
        weights = _weights(outputs, width, dtype, device)
        for count in tokens:
            x = torch.randn(count, width, device=device).to(dtype)
            for way, multiply in (compiled_ways if compiled else ways)(device, count).items():
                cell: Cell = {
                    "device": device_name(device),
                    "matrix": name,
                    "out": outputs,
                    "in": width,
                    "tokens": count,
                    "way": way,
                    "microseconds": None,
                    "bandwidth_share": None,
                }
                try:
                    taken = _microseconds(multiply, x, weights, device, repeats)
                except Exception as error:  # noqa: BLE001  of any library; the other ways go on
                    yield cell | {"failed": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}
                    continue
                read = outputs * width * dtype.itemsize
                yield cell | {"microseconds": taken, "bandwidth_share": 1e6 * read / taken / bandwidth}
        say(f"products with {name}{', compiled' if compiled else ''}")


def matrices(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """[out, in] of the merged matrices of a layer, and of the output."""
    heads = (model.heads + 2 * model.kv_heads) * model.head_dim
    return {
        "qkv": (heads, model.hidden_size),
        "output": (model.hidden_size, model.heads * model.head_dim),
        "gate_up": (2 * model.intermediate_size, model.hidden_size),
        "down": (model.hidden_size, model.intermediate_size),
        "lm_head": (model.vocabulary, model.hidden_size),
    }


def ways(device: torch.device, tokens: int) -> dict[str, Product]:
    if device.type != "cuda":
        return {"torch": by_torch}
    found = {"cublas": by_library("cublas"), "cublaslt": by_library("cublaslt")}
    if importlib.util.find_spec("triton") is not None and tokens <= MOST_TOKENS:
        from aerie.engine.kernels.products import multiply

        found["triton"] = multiply
    return found


def compiled_ways(device: torch.device, tokens: int) -> dict[str, Product]:
    """Products that compile for seconds."""
    return {"inductor": ByInductor()} if device.type == "cuda" and tokens in _COMPILED else {}


def _weights(outputs: int, width: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    copies = min(_MOST_COPIES, max(2, _FORGOTTEN[device.type] // (outputs * width * dtype.itemsize)))
    return [torch.randn(outputs, width, device=device).mul_(width**-0.5).to(dtype) for _ in range(copies)]


def _microseconds(multiply: Product, x: Tensor, weights: list[Tensor], device: torch.device, repeats: int) -> float:
    """Of one product; several in a row, each with another copy."""
    several = microseconds(lambda: [multiply(x, weight) for weight in weights], device, repeats)
    return several / len(weights)
