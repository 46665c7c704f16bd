"""Batches for SGLang, on a stand-in for its classes: those that graphs capture read nothing from the host."""

import sys
from collections.abc import Iterator
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from aerie.engine.attention.inputs import AttentionInputs
from tests.engine.fake_gpu import GPU, fake_gpu

_NAMES = {
    "sglang.srt.model_executor.forward_batch_info": {
        "ForwardBatch": SimpleNamespace,
        "ForwardMode": Enum("ForwardMode", ["EXTEND", "DECODE", "TARGET_VERIFY"]),
        "CaptureHiddenMode": Enum("CaptureHiddenMode", ["NULL", "FULL"]),
    },
    "sglang.srt.speculative.spec_info": {"SpeculativeAlgorithm": Enum("SpeculativeAlgorithm", ["NONE"])},
}


class FromTheHost(TorchDispatchMode):
    """Counts operators that take a tensor of the host to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given, made = (_kinds(values) for values in ((args, kwargs), result))
        if "cpu" in given and "cuda" in made:
            self.names.append(func._schema.name)
        return result


def _kinds(values: Any) -> set[str]:
    return {value.device.type for value in tree_flatten(values)[0] if isinstance(value, Tensor) and value.ndim}


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for name in _NAMES:
        pieces = name.split(".")
        for end in range(1, len(pieces) + 1):
            monkeypatch.setitem(sys.modules, ".".join(pieces[:end]), ModuleType(".".join(pieces[:end])))
    for name, parts in _NAMES.items():
        for part, value in parts.items():
            setattr(sys.modules[name], part, value)
    monkeypatch.delitem(sys.modules, "aerie.engine.sglang.batches", raising=False)
    import aerie.engine.sglang.batches as module

    yield module
    sys.modules.pop("aerie.engine.sglang.batches", None)


def batch_of(module: ModuleType, counts: list[int], *, wanted: bool) -> tuple[Any, list[str]]:
    """A batch of rows with `counts` tokens each, and what took host values to the device."""
    tokens = sum(counts)
    with fake_gpu(), FromTheHost() as copied:
        each = torch.zeros(tokens, dtype=torch.int64, device=GPU)
        inputs = AttentionInputs(
            qo_indptr=torch.tensor([0, *counts], dtype=torch.int32).cumsum(0).int(),
            kv_indptr=torch.arange(len(counts) + 1, dtype=torch.int32),
            kv_indices=torch.zeros(len(counts), dtype=torch.int32, device=GPU),
            last_page_len=torch.ones(len(counts), dtype=torch.int32),
            prefix_lens=torch.zeros(len(counts), dtype=torch.int64, device=GPU),
            words=None,
            page_size=16,
        )
        chosen = torch.zeros(len(counts), dtype=torch.int64, device=GPU) if wanted else None
        copied.names.clear()
        batch = module.make_batch(each, each, each, inputs, chosen, taps=False)
    return batch, copied.names


@pytest.mark.parametrize(("counts", "mode"), [([1, 1, 1], "DECODE"), ([4, 4], "TARGET_VERIFY")])
def test_what_graphs_capture_reads_nothing_of_the_host(batches: ModuleType, counts: list[int], mode: str) -> None:
    batch, copied = batch_of(batches, counts, wanted=False)
    assert batch.forward_mode.name == mode and copied == []
    assert batch.seq_lens.device == GPU and batch.seq_lens.shape == (len(counts),)


def test_a_prefill_sends_its_counts(batches: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)  # locking pages needs a GPU
    batch, copied = batch_of(batches, [2, 3], wanted=True)
    assert batch.forward_mode.name == "EXTEND" and len(copied) == 1
    assert batch.extend_start_loc.device == GPU and batch.extend_num_tokens == 5
