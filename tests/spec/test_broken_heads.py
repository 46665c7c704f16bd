"""Heads whose weights are anything at all: the text is that of no speculation, whatever bits they hold."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aerie.contracts.config import parse_config
from aerie.contracts.worker import Worker
from aerie.native.library import missing
from aerie.worker import build_worker
from tests.spec import models
from tests.spec.conftest import MakeWorker
from tests.spec.test_worker import SHAPES, plain_tokens, run, sampling
from tests.spec.trees.tree_checks import any_bits

KERNELS = ("torch", *(("cpp",) if missing() is None else ()))
HEADS = ("eagle3", "peagle")


def written(folder: Path, kind: str, tensors: dict[str, Tensor]) -> Path:
    config = models.peagle_config() if kind == "peagle" else models.specforge_config()
    return models.write(folder, config, tensors)


def tensors_of(kind: str) -> dict[str, Tensor]:
    return models.peagle_tensors(seed=99) if kind == "peagle" else models.head_tensors(seed=99)


def worker_of(target: Path, head: Path, kernels: str, **spec: Any) -> Worker:
    data = {
        "model": {"path": str(target), "dtype": "float32"},
        "engine": {"kv_tokens": 6144, "kernels": kernels},
        "scheduler": {"max_running": 8},
        "spec": {"head": str(head), "depth": 6, "topk": 4, "nodes": 32} | spec,
    }
    return build_worker(parse_config(data))


def check_the_text(make_worker: MakeWorker, worker: Worker, shape: str, temperature: float) -> None:
    params = [sampling(row, temperature) for row in range(4)]
    rows = run(worker, params, drafting=[True] * 4, **SHAPES[shape])
    assert [row.out for row in rows] == plain_tokens(make_worker, params)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("fault", ["nan", "inf", "one nan row", "zeros", "huge"])
def test_a_broken_head_changes_speed_only(
    make_worker: MakeWorker, target_folder: Path, tmp_path: Path, kind: str, kernels: str, fault: str
) -> None:
    tensors = tensors_of(kind)
    for name, tensor in tensors.items():
        if fault == "one nan row":
            tensors["lm_head.weight"][17] = torch.nan
        elif fault == "huge":
            tensor *= 1e37
        elif name != "embed_tokens.weight":
            tensor.fill_({"nan": torch.nan, "inf": torch.inf, "zeros": 0.0}[fault])
    worker = worker_of(target_folder, written(tmp_path, kind, tensors), kernels, draft_temperature=float("inf"))
    for shape in ("chain", "tree"):
        for temperature in (0.0, 1.0):
            check_the_text(make_worker, worker, shape, temperature)


@settings(max_examples=16)
@given(data=st.data())
def test_any_bits_in_a_head_change_speed_only(
    make_worker: MakeWorker, target_folder: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    kind, kernels = data.draw(st.sampled_from(HEADS)), data.draw(st.sampled_from(KERNELS))
    tensors = tensors_of(kind)
    torch.manual_seed(data.draw(st.integers(0, 2**32)))
    some = data.draw(st.lists(st.sampled_from(sorted(tensors)), min_size=1, unique=True))
    share = data.draw(st.sampled_from([1.0, 0.5, 0.01]))
    for name in some:
        broken = any_bits(tuple(tensors[name].shape), 0.1)
        tensors[name] = torch.where(torch.rand_like(broken) < share, broken, tensors[name])
    trust = data.draw(st.sampled_from([1.0, float("inf")]))
    head = written(tmp_path_factory.mktemp("head"), kind, tensors)
    worker = worker_of(target_folder, head, kernels, draft_temperature=trust)
    check_the_text(
        make_worker, worker, data.draw(st.sampled_from(list(SHAPES))), data.draw(st.sampled_from([0.0, 0.8]))
    )
