"""The plain worker against dense generation: any family, batch mix, chunking and sampling."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aerie.contracts.config import parse_config
from aerie.contracts.sampling import SamplingParams, noise_key
from aerie.engine.build import build_plain_worker
from aerie.engine.sampling.noise import gumbel
from aerie.engine.step.plain_worker import PlainWorker
from tests.engine.conftest import FAMILIES
from tests.engine.rounds import Rounds

Models = Callable[[str], tuple[Path, Any]]


def make_worker(folder: Path, *, page_size: int = 16, attention: str = "auto") -> PlainWorker:
    return build_plain_worker(
        parse_config(
            {
                "model": {"path": str(folder), "dtype": "float32"},
                "engine": {"kv_tokens": 4096, "page_size": page_size, "attention": attention},
                "scheduler": {"max_running": 8, "poison": True},
            }
        )
    )


@torch.inference_mode()
def dense(model: Any, prompt: list[int], sampling: SamplingParams) -> list[int]:
    """Slow and obvious: the whole sequence again for every token, filters by sorting, the same noise."""
    ids = list(prompt)
    tokens = torch.arange(model.config.vocab_size)
    key = torch.tensor([noise_key(sampling.seed, prompt, 0)])
    for _ in range(sampling.max_tokens):
        logits = model(torch.tensor([ids])).logits[0, -1].float()
        if sampling.temperature > 0:
            logits = logits / sampling.temperature
            probabilities = logits.softmax(-1)
            logits[probabilities < sampling.min_p * probabilities.max()] = -torch.inf
            order = logits.argsort(descending=True)
            if sampling.top_k:
                logits[order[sampling.top_k :]] = -torch.inf
            mass = logits.softmax(-1)[order].cumsum(0)
            keep = int((mass < sampling.top_p).sum()) + 1
            logits[order[keep:]] = -torch.inf
            logits = logits + gumbel(key, torch.tensor([len(ids)]), tokens)[0]
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [7, 64])
def test_greedy_equals_dense_generation(models: Models, family: str, chunk: int) -> None:
    folder, model = models(family)
    rounds = Rounds(make_worker(folder))
    prompt = list(range(5, 42))
    sampling = SamplingParams(temperature=0, max_tokens=24)
    row = rounds.add(3, prompt, sampling, chunk=chunk)
    rounds.finish([row], slack=4)
    assert row.out == dense(model, prompt, sampling)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("attention", ["cpu", "reference"])
def test_a_mixed_batch_equals_each_row_alone(models: Models, page_size: int, attention: str) -> None:
    folder, model = models("llama")
    rounds = Rounds(make_worker(folder, page_size=page_size, attention=attention))
    wanted = [
        SamplingParams(temperature=0, max_tokens=9),
        SamplingParams(temperature=0.8, seed=1, max_tokens=14),
        SamplingParams(temperature=1.2, top_k=5, seed=2, max_tokens=12),
        SamplingParams(temperature=1.0, top_p=0.7, min_p=0.02, seed=3, max_tokens=10),
    ]
    prompts = [[7, 8, 9], list(range(20, 55)), [4] * 16, [30, 31] * 9]
    rows = [rounds.add(i, p, s, chunk=16) for i, (p, s) in enumerate(zip(prompts, wanted, strict=True))]
    rounds.finish(rows)
    for row in rows:
        assert row.out == dense(model, row.prompt, row.sampling)


def test_stop_ids_end_a_row_and_min_tokens_keep_it_open(models: Models) -> None:
    folder, model = models("llama")
    free = dense(model, [9, 8, 7], SamplingParams(temperature=0, max_tokens=12))
    stop = free[4]
    first = free.index(stop)
    rounds = Rounds(make_worker(folder))
    row = rounds.add(0, [9, 8, 7], SamplingParams(temperature=0, max_tokens=12, stop_token_ids=(stop,)))
    rounds.finish([row])
    assert row.out == free[: first + 1]
    late = rounds.add(
        1, [9, 8, 7], SamplingParams(temperature=0, max_tokens=12, min_tokens=first + 3, stop_token_ids=(stop,))
    )
    rounds.finish([late])
    assert late.out[:first] == free[:first]
    assert stop not in late.out[: first + 3]


def test_a_done_row_commits_nothing_and_keeps_its_neighbors(models: Models) -> None:
    folder, model = models("llama")
    rounds = Rounds(make_worker(folder))
    short = rounds.add(0, [5, 6], SamplingParams(temperature=0, max_tokens=3))
    long = rounds.add(1, [50, 51], SamplingParams(temperature=0, max_tokens=9))
    while not long.done:
        output = rounds.decode([short, long])
    assert short.out == dense(model, [5, 6], short.sampling)
    assert long.out == dense(model, [50, 51], long.sampling)
    assert output.counts[0] == 0


def test_logprobs_are_the_raw_targets(models: Models) -> None:
    folder, model = models("llama")
    rounds = Rounds(make_worker(folder))
    row = rounds.add(0, [5, 6, 7], SamplingParams(temperature=0.7, seed=4, max_tokens=5, logprobs=3))
    rounds.finish([row])
    with torch.inference_mode():
        logits = model(torch.tensor([[5, 6, 7, *row.out]])).logits[0].float().log_softmax(-1)
    expected = [float(logits[2 + i, token]) for i, token in enumerate(row.out)]
    assert row.logprobs == pytest.approx(expected, abs=1e-4)
