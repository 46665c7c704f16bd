"""`aerie probe baseline`: plain decoding against `transformers` generate, same weights, one request at a time.

Both answer the same prompts greedily, to the same length, at each number of threads. Runs alternate, and each side is
judged by its best figure. `transformers` runs in this process, in fp32 and in bf16, as it is and compiled.
"""

import itertools
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, CompileConfig

from aerie.contracts.config import Config
from aerie.probe.drive import MakeLane, Prompts, ask, drive

Cell = dict[str, Any]
_Rates = dict[tuple[str, str, bool, int], list[float]]
"""Tokens per second of each round, by side, dtype, whether it is compiled, and threads; the first round warms up."""
_PEER_DTYPES = ("float32", "bfloat16")
_GRAIN = 64
"""Compiled, prompts are padded to a multiple of this many tokens: each length costs a compilation."""


def measure_baseline(
    config: Config,
    prompts: Prompts,
    make_lane: MakeLane,
    *,
    threads: Sequence[int] = (1, 2, 3),
    rounds: int = 3,
    max_tokens: int = 64,
    backend: str = "inductor",
) -> list[Cell]:
    """One cell for each side, dtype and number of threads, of `transformers` another one compiled by `backend`; each
    side's best one has `over_transformers`.
    """
    plain = config.model_copy(update={"spec": config.spec.model_copy(update={"head": "none"})})
    peers = {dtype: _load(config, dtype) for dtype in _PEER_DTYPES}
    rates: _Rates = {}
    answers: dict[tuple[str, bool], list[list[int]]] = {}
    warm_up = list({_padded(len(prompt)): prompt for prompt in prompts}.values())
    compilation: Any = CompileConfig(backend=backend, mode="default")
    compilation._compile_all_devices = True  # without it generate compiles only on GPUs
    with ExitStack() as lanes:
        own = {count: lanes.enter_context(closing(make_lane(_with_threads(plain, count)))) for count in threads}
        for number in range(rounds + 1):
            asked = prompts if number else warm_up
            requests = ask(asked, [0.0], max_tokens=max_tokens, ignore_eos=True)  # the same work for both sides
            for count, lane in own.items():
                run = drive(lane, plain, requests, concurrency=1)
                answers["aerie", False] = run.tokens
                rates.setdefault(("aerie", plain.model.dtype, False, count), []).append(run.tokens_per_s)
                torch.set_num_threads(count)
                for dtype, compiled in itertools.product(peers, (False, True)):
                    rate, answers[dtype, compiled] = _generate(
                        peers[dtype], asked, max_tokens, compilation if compiled else None
                    )
                    rates.setdefault(("transformers", dtype, compiled, count), []).append(rate)
    theirs = answers["float32", False]
    same = [one == other for one, other in zip(answers["aerie", False], theirs, strict=True)]
    return _cells(rates, sum(same) / len(same))


def _load(config: Config, dtype: str) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(Path(config.model.path), dtype=getattr(torch, dtype)).eval()
    model.generation_config.eos_token_id = None  # every answer has the full length
    return model


@torch.inference_mode()
def _generate(
    model: Any, prompts: Prompts, max_tokens: int, compilation: CompileConfig | None
) -> tuple[float, list[list[int]]]:
    """Tokens per second, and the answers' ids."""
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": max_tokens, "pad_token_id": 0}
    if compilation is not None:
        options |= {"cache_implementation": "static", "compile_config": compilation}
    answers = []
    began = time.monotonic()
    for prompt in prompts:
        padding = 0 if compilation is None else _padded(len(prompt)) - len(prompt)
        ids = torch.tensor([[0] * padding + list(prompt)])
        mask = torch.ones_like(ids)
        mask[:, :padding] = 0
        out = model.generate(ids, attention_mask=mask, **options)
        answers.append(out[0, ids.shape[1] :].tolist())
    return max_tokens * len(prompts) / (time.monotonic() - began), answers


def _padded(length: int) -> int:
    return -(-length // _GRAIN) * _GRAIN


def _with_threads(config: Config, count: int) -> Config:
    return config.model_copy(update={"engine": config.engine.model_copy(update={"threads": count})})


def _cells(rates: _Rates, identical: float) -> list[Cell]:
    cells: list[Cell] = [
        {
            "side": side,
            "dtype": dtype,
            "compiled": compiled,
            "threads": count,
            "tokens_per_s": statistics.median(found[1:]),
            "tokens_per_s_of_rounds": found[1:],
            "best": False,
            "over_transformers": None,
            "identical": identical if side == "aerie" else None,
        }
        for (side, dtype, compiled, count), found in rates.items()
    ]
    best = {side: _best(cells, side) for side in ("aerie", "transformers")}
    for cell in best.values():
        cell["best"] = True
        cell["over_transformers"] = cell["tokens_per_s"] / best["transformers"]["tokens_per_s"]
    return cells


def _best(cells: list[Cell], side: str) -> Cell:
    return max((cell for cell in cells if cell["side"] == side), key=lambda cell: float(cell["tokens_per_s"]))
