"""Plain decoding beside llama.cpp: a Llama shape with random weights, on both sides in the same precision.

    python scripts/peers/llama_shape.py configs/shape/llama-1b/target --precision int8 --threads 2 --out FILE.json

`sh scripts/peers/llama_cpp.sh shape` builds llama.cpp for it. Both sides decode greedily from short prompts,
without HTTP: Aerie through its scheduler and lane, llama.cpp through llama_decode.cpp. They take turns at every
concurrency of every round; a ratio is the median of its rounds'. Both run what they compile for this processor, or with
`--march x86-64-v3` what they compile for AVX2.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import gguf
import numpy as np
from export_gguf import describe, tensor_name

from aerie.bench.origin import FIXED
from aerie.contracts.config import Config, parse_config
from aerie.contracts.step import Lane
from aerie.lane import make_lane
from aerie.probe.report import provenance, show
from aerie.probe.steady import steady

PEERS = Path("build/peers")
KINDS = {"bf16": gguf.GGMLQuantizationType.BF16, "int8": gguf.GGMLQuantizationType.Q8_0}
"""llama.cpp's type of a matrix, by Aerie's precision. Q8_0 has a 16-bit scale for every 32 weights."""
_LONGEST = 256
"""Tokens of a sequence, as in llama_decode.cpp."""
Cell = dict[str, Any]


def tensors_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of a Llama's tensors, by their names in a checkpoint."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens": (config["vocab_size"], hidden), "model.norm": (hidden,)}
    if not config["tie_word_embeddings"]:
        found["lm_head"] = (config["vocab_size"], hidden)
    of_a_layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    for layer in range(config["num_hidden_layers"]):
        found |= {f"model.layers.{layer}.{name}": shape for name, shape in of_a_layer.items()}
    return {f"{name}.weight": shape for name, shape in found.items()}


def write_gguf(config: dict[str, Any], out: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Random weights of a config.json, without a vocabulary."""
    writer = gguf.GGUFWriter(out, "llama")
    describe(writer, config, out.stem, kind)
    writer.add_tokenizer_model("no_vocab")
    chosen = np.random.default_rng(1)
    for name, shape in tensors_of(config).items():
        if len(shape) == 1:
            writer.add_tensor(tensor_name(name), np.ones(shape, np.float32))
            continue
        data = (chosen.random(shape, np.float32) * 2 - 1) * np.float32((3 / shape[1]) ** 0.5)
        writer.add_tensor(tensor_name(name), gguf.quants.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Peer:
    """llama.cpp with a model, in a process that waits while Aerie runs."""

    def __init__(self, model: Path, threads: int, march: str) -> None:
        libraries = PEERS / f"shared-{march}" / "bin"
        command = [str(PEERS / "llama_decode"), str(model), str(threads)]
        environment = os.environ | {"LD_LIBRARY_PATH": str(libraries.resolve())}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.system = self._line()
        """Its own words on the instructions that it uses."""

    def tokens_per_s(self, rows: int, prompt: int, steps: int) -> float:
        stdin: IO[str] | None = self._process.stdin
        assert stdin is not None
        print(rows, prompt, steps, file=stdin, flush=True)
        return float(self._line())

    def close(self) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"llama_decode ended with {self._process.wait()}; its error stands above")
        return line


def config_of(shape: Path, precision: str, threads: int, rows: int) -> Config:
    quantization = "int8" if precision == "int8" else "none"
    return parse_config(
        {
            "model": {
                "path": str(shape),
                "weights": "dummy",
                "quantization": quantization,
                "max_length": _LONGEST,
            },
            "engine": {"device": "cpu", "threads": threads, "kv_tokens": (_LONGEST + 16) * rows},
            "scheduler": {"max_running": rows, "prefix_cache": False},
            "spec": {"head": "none"},
        }
    )


def measured(lane: Lane, config: Config, peer: Peer, rows: int, prompt: int, steps: int) -> tuple[float, float]:
    """Tokens a second of Aerie and of llama.cpp, one after the other."""
    own = steady(lane, config, rows=rows, prompt=prompt, steps=steps).tokens_per_s
    return own, peer.tokens_per_s(rows, prompt, steps)


def measure(given: argparse.Namespace) -> list[Cell]:
    shape = json.loads((given.shape / "config.json").read_text(encoding="utf-8"))
    model = PEERS / f"{given.shape.parent.name}-{given.precision}.gguf"
    if not model.exists():
        write_gguf(shape, model, KINDS[given.precision])
    batches = [int(rows) for rows in given.batches.split(",")]
    config = config_of(given.shape, given.precision, given.threads, max(batches))
    rates: dict[int, list[tuple[float, float]]] = {rows: [] for rows in batches}
    with closing(make_lane(config)) as lane, closing(Peer(model, given.threads, given.march)) as peer:
        for _ in range(given.rounds):
            for rows, found in rates.items():
                found.append(measured(lane, config, peer, rows, given.prompt, given.steps))
        kernels = lane.capacity.report["kernel_set"]
        return [_cell(given, rows, found, kernels, peer.system) for rows, found in rates.items()]


def _cell(given: argparse.Namespace, rows: int, found: list[tuple[float, float]], kernels: Any, system: str) -> Cell:
    own, theirs = zip(*found, strict=True)
    return {
        "shape": given.shape.parent.name,
        "precision": given.precision,
        "threads": given.threads,
        "march": given.march,
        "concurrency": rows,
        "tokens_per_s": statistics.median(own),
        "llama_cpp_tokens_per_s": statistics.median(theirs),
        "over_llama_cpp": statistics.median(one / other for one, other in found),
        "rounds": [{"aerie": one, "llama.cpp": other} for one, other in found],
        "kernel_set": kernels,
        "llama_cpp_system": system,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", type=Path, help="folder with a Llama's config.json")
    parser.add_argument("--precision", choices=KINDS, default="bf16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--march", choices=("best", "x86-64-v3"), default="best")
    parser.add_argument("--batches", default="1,4,16", help="concurrent sequences, comma-separated")
    parser.add_argument("--prompt", type=int, default=8, help="tokens")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="file of JSON lines to append to")
    given = parser.parse_args()
    if given.march != "best":
        os.environ["AERIE_MARCH"] = given.march
    cells = measure(given)
    columns = {"precision": "s", "threads": "d", "march": "s", "concurrency": "d", "tokens_per_s": ".2f"}
    show("Beside llama.cpp", cells, columns | {"llama_cpp_tokens_per_s": ".2f", "over_llama_cpp": ".2f"})
    if given.out is not None:
        with given.out.open("a", encoding="utf-8") as file:
            print(json.dumps({"cells": cells, "provenance": provenance(None, FIXED)}), file=file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
