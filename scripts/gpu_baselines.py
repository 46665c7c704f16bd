"""Plain decoding by what any machine with PyTorch has, on a shape with random weights: transformers with a static
cache, and a small decoder in one CUDA graph.

    python scripts/gpu_baselines.py configs/shape/llama-3.1-8b/target --out baselines.json

Both are greedy, in the dtype of the shape, with the same context for every row. The second has no scheduler, no paging
and no choice: what is faster than it is faster than PyTorch's own operators allow. On a CPU nothing is captured or
compiled; the cells say so.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from aerie.bench import origin

Cell = dict[str, Any]
_ROUNDS = 3


class Decoder:
    """A Llama without prefill: `step` reads one token of each row over `context` cached positions."""

    def __init__(self, config: Any, rows: int, context: int, dtype: torch.dtype, device: torch.device) -> None:
        self._config, self._context = config, context
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._dim = getattr(config, "head_dim", None) or config.hidden_size // self._heads
        hidden, inner = config.hidden_size, config.intermediate_size
        merged = (self._heads + 2 * self._kv_heads) * self._dim

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, dtype=dtype, device=device) * shape[-1] ** -0.5

        self._embeddings, self._output = drawn(config.vocab_size, hidden), drawn(config.vocab_size, hidden)
        self._layers = [
            (
                drawn(merged, hidden),
                drawn(hidden, self._heads * self._dim),
                drawn(2 * inner, hidden),
                drawn(hidden, inner),
            )
            for _ in range(config.num_hidden_layers)
        ]
        self._gain = torch.ones(hidden, dtype=dtype, device=device)
        cache = (config.num_hidden_layers, 2, rows, self._kv_heads, context, self._dim)
        self._cache = torch.zeros(cache, dtype=dtype, device=device)
        angles = torch.rand(1, 1, 1, self._dim // 2, device=device)
        self._cos, self._sin = angles.cos().to(dtype), angles.sin().to(dtype)
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)

    @torch.inference_mode()
    def step(self) -> None:
        """Writes the chosen tokens over `tokens`."""
        x = self._embeddings.index_select(0, self.tokens)
        for layer, (qkv, output, gate_up, down) in enumerate(self._layers):
            merged = functional.linear(self._normed(x), qkv).view(x.shape[0], -1, 1, self._dim)
            query, key, value = merged.split([self._heads, self._kv_heads, self._kv_heads], 1)
            keys, values = self._cache[layer]
            keys[:, :, -1:] = self._rotated(key)
            values[:, :, -1:] = value
            mixed = functional.scaled_dot_product_attention(
                self._rotated(query), keys, values, enable_gqa=self._heads != self._kv_heads
            )
            x = x + functional.linear(mixed.reshape(x.shape[0], -1), output)
            gate, up = functional.linear(self._normed(x), gate_up).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, down)
        self.tokens.copy_(functional.linear(self._normed(x), self._output).argmax(-1))

    def _normed(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self._gain.shape, self._gain, self._config.rms_norm_eps)

    def _rotated(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        return torch.cat((left * self._cos - right * self._sin, right * self._cos + left * self._sin), -1)


def graph_seconds(config: Any, rows: int, context: int, steps: int, dtype: torch.dtype, device: torch.device) -> float:
    """Seconds of a step."""
    decoder = Decoder(config, rows, context, dtype, device)
    step: Callable[[], None] = decoder.step
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            decoder.step()
        step = graph.replay
    return _timed(lambda: [step() for _ in range(steps)], device) / steps


def transformers_seconds(
    config: Any, rows: int, context: int, steps: int, dtype: torch.dtype, device: torch.device
) -> float:
    """Seconds of a step: of two answers of different lengths, the difference. generate compiles by itself on a GPU."""
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    prompt = torch.randint(2, config.vocab_size, (rows, context), device=device)

    def answer(tokens: int) -> float:
        limits = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        mask = torch.ones_like(prompt)
        with torch.inference_mode():
            call = lambda: model.generate(prompt, attention_mask=mask, cache_implementation="static", **limits)  # noqa: E731
            call()
            return _timed(call, device)

    return (answer(2 * steps) - answer(steps)) / steps


def _timed(call: Callable[[], object], device: torch.device) -> float:
    """The median of some rounds."""
    taken = []
    for _ in range(_ROUNDS):
        _wait(device)
        began = time.perf_counter()
        call()
        _wait(device)
        taken.append(time.perf_counter() - began)
    return sorted(taken)[_ROUNDS // 2]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


BASELINES = {"graph": graph_seconds, "transformers": transformers_seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", type=Path, help="a folder with config.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=BASELINES, help="both by default")
    parser.add_argument("--rows", default="1,8,64")
    parser.add_argument("--context", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--quick", action="store_true", help="one row, a few steps")
    given = parser.parse_args()
    if given.quick:
        given.rows, given.context, given.steps = "1", 16, 2
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = AutoConfig.from_pretrained(given.shape)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    cells: list[Cell] = []
    for name in [given.only] if given.only else BASELINES:
        for rows in map(int, given.rows.split(",")):
            cell: Cell = {"baseline": name, "batch": rows, "context": given.context, "device": _name(device)}
            cell |= {"dtype": str(dtype).removeprefix("torch."), "captured": device.type == "cuda"}
            try:
                seconds = BASELINES[name](config, rows, given.context, given.steps, dtype, device)
                cell |= {"step_ms": 1e3 * seconds, "tokens_per_s": rows / seconds if seconds > 0 else None}
            except Exception as error:  # noqa: BLE001  printed; the other baselines go on
                traceback.print_exc()
                cell["failed"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            print(cell)
            cells.append(cell)
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(
                json.dumps({"cells": cells, "provenance": origin.provenance()}) + "\n", encoding="utf-8"
            )
    return int(any("failed" in cell for cell in cells))


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


if __name__ == "__main__":
    sys.exit(main())
