"""What fits where: a CPU's share, and a GPU whose weights come first, stood in for by the few calls that ask it."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aerie.contracts.config import Config, parse_config
from aerie.contracts.errors import ConfigError
from aerie.engine import device
from aerie.engine.bindings import Kernels
from aerie.engine.device import resolve_device, resolve_dtype
from aerie.engine.memory import HeadSizes, parameter_count, plan_sizes
from aerie.engine.model.config import ModelConfig, Rope

GIB = 2**30
LLAMA_8B = ModelConfig(
    architecture="LlamaForCausalLM",
    hidden_size=4096,
    intermediate_size=14336,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocabulary=128256,
    max_positions=131072,
    norm_eps=1e-5,
    rope=Rope(),
    attention_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    tied_embeddings=False,
    dtype="bfloat16",
    end_ids=(),
)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Stands in for a GPU with so much free memory and such a compute capability."""

    def make(free: int = 79 * GIB, capability: tuple[int, int] = (9, 0)) -> None:
        for name, answer in (
            ("is_available", True),
            ("mem_get_info", (free, 80 * GIB)),
            ("get_device_capability", capability),
            ("get_device_name", "a stand-in"),
        ):
            monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
        monkeypatch.setattr(torch, "version", SimpleNamespace(cuda="13.0"))

    return make


def config(**sections: Any) -> Config:
    return parse_config({"model": {"max_length": 8192}, "engine": {"device": "cuda"}} | sections)


def test_the_parameters_are_those_of_the_model_card() -> None:
    assert parameter_count(LLAMA_8B) == pytest.approx(8.03e9, rel=0.001)


def test_a_gpu_s_pool_is_what_weights_leave(gpu: Callable[..., None]) -> None:
    gpu()
    sizes = plan_sizes(config(scheduler={"max_running": 256}), LLAMA_8B, reserve=5)
    token = 2 * 32 * 8 * 128 * 2
    taken = sizes.pages * sizes.page_size * token
    assert sizes.device.type == "cuda" and sizes.dtype is torch.bfloat16
    assert 0.5 * (79 * GIB - 16.1e9) < taken < 0.9 * (79 * GIB - 16.1e9)
    few = plan_sizes(config(scheduler={"max_running": 2}), LLAMA_8B, reserve=5)
    assert (few.pages - 1) * few.page_size == pytest.approx(2 * 8192, rel=0.01)


def test_a_wide_tree_at_few_rows_takes_few_logits(gpu: Callable[..., None]) -> None:
    gpu()
    loads = [{"rows": 1, "depth": 6, "topk": 8, "nodes": 64}, {"rows": 256, "depth": 2, "nodes": 3}]
    pages = [
        plan_sizes(config(scheduler={"max_running": 256}, spec=spec), LLAMA_8B, reserve=64).pages
        for spec in ({"depth": 2, "nodes": 3}, {"by_load": loads})
    ]
    assert pages[0] == pages[1]
    with pytest.raises(ConfigError, match="are missing"):
        plan_sizes(config(scheduler={"max_running": 256}, spec={"depth": 6, "nodes": 64}), LLAMA_8B, reserve=64)


def test_tails_and_the_pass_that_takes_them_in_are_taken_off_the_pool(gpu: Callable[..., None]) -> None:
    gpu()
    own, tail, taps = config(scheduler={"max_running": 256}, engine={"device": "cuda", "graphs": False}), 64, 3 * 4096
    without, with_tails = (
        plan_sizes(own, LLAMA_8B, reserve=5, head=HeadSizes(tail=size, tap_numbers=taps)) for size in (0, tail)
    )
    less = (without.pages - with_tails.pages) * without.page_size * 2 * 32 * 8 * 128 * 2
    tails = 256 * tail * taps * 2
    assert 0.9 * tails < less < 0.9 * (tails + 256 * tail * (4 * 4096 + 3 * 14336) * 2) + GIB / 64


def test_too_little_memory_says_how_much_is_missing_and_what_gives_it(gpu: Callable[..., None]) -> None:
    gpu(free=16 * GIB)
    head = HeadSizes(kv_numbers=2 * 8 * 128, bytes=GIB)
    with pytest.raises(ConfigError, match=r"16\.0 GiB free; weights take 16\.0 GiB.* are missing.*model\.max_length"):
        plan_sizes(config(scheduler={"max_running": 8}), LLAMA_8B, reserve=5, head=head)
    with pytest.raises(ConfigError, match=r"kv_tokens 900000 takes 109\.9 GiB.*are missing"):
        gpu(free=79 * GIB)
        plan_sizes(config(engine={"device": "cuda", "kv_tokens": 900_000}), LLAMA_8B)


def test_a_pool_that_a_cpu_has_no_memory_for_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"kv_tokens 90000000000 takes \d+\.\d GiB, and \d+\.\d GiB of memory are free"
    ):
        plan_sizes(config(engine={"device": "cpu", "kv_tokens": 90_000_000_000}), LLAMA_8B)


def test_dtypes_follow_the_device(gpu: Callable[..., None]) -> None:
    cuda = torch.device("cuda")
    gpu(capability=(7, 5))
    assert resolve_dtype(config(), "bfloat16", cuda) is torch.float16
    with pytest.raises(ConfigError, match=r"a stand-in has no units for bfloat16; set model\.dtype=float16"):
        resolve_dtype(config(model={"dtype": "bfloat16"}), "float16", cuda)
    gpu(capability=(8, 0))
    assert resolve_dtype(config(), "bfloat16", cuda) is torch.bfloat16
    assert resolve_dtype(config(), "float16", cuda) is torch.float16
    assert resolve_dtype(config(), "float32", cuda) is torch.float32


def test_a_cpu_without_units_computes_in_bf16_if_its_kernels_widen_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_computes", lambda *_: False)
    cpu = torch.device("cpu")
    for checkpoint, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float32), ("float32", torch.float32)):
        assert resolve_dtype(config(), checkpoint, cpu, widens=True) is dtype
        assert resolve_dtype(config(), checkpoint, cpu) is torch.float32
    assert resolve_dtype(config(model={"dtype": "float32"}), "bfloat16", cpu, widens=True) is torch.float32
    own, small = config(engine={"device": "cpu"}), replace(LLAMA_8B, layers=1, vocabulary=1000)
    assert plan_sizes(own, small, kernels=Kernels(widens=True)).dtype is torch.bfloat16
    assert plan_sizes(own, small).dtype is torch.float32


def test_no_driver_and_no_cuda_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device(parse_config({})).type == "cpu"
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda=None))
    with pytest.raises(ConfigError, match="built for CPUs"):
        resolve_device(config())
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda="13.0"))
    with pytest.raises(ConfigError, match="no GPU with a working driver"):
        resolve_device(config())
