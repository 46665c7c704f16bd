"""A target in 8 bits: the rounded weights, and with them the same tokens with speculation and without."""

from pathlib import Path
from typing import Any

import pytest
import torch

from aerie.contracts.config import Config, parse_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.worker import Worker
from aerie.engine import build
from aerie.engine.model.decoder import Decoder
from aerie.engine.model.matrix import rounded
from aerie.native.worker import NativeWorker
from aerie.worker import build_worker
from tests.native.cpp_here import needs_cpp
from tests.native.whole_steps import write_pair
from tests.spec.test_worker import SHAPES, run, sampling

KERNELS = ["torch", pytest.param("cpp", marks=needs_cpp)]
ARITHMETIC = [("torch", "float32"), *(pytest.param("cpp", dtype, marks=needs_cpp) for dtype in ("float32", "bfloat16"))]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("pair"))


def config_of(
    pair: tuple[Path, Path], kernels: str, *, dtype: str = "float32", head: bool = True, **model: Any
) -> Config:
    return parse_config(
        {
            "model": {"path": str(pair[0]), "dtype": dtype, "quantization": "int8"} | model,
            "engine": {"kv_tokens": 4096, "page_size": 4, "kernels": kernels},
            "scheduler": {"max_running": 8},
            "spec": {"head": str(pair[1]) if head else "none", "depth": 6, "topk": 4, "nodes": 32},
        }
    )


def target_of(worker: Worker) -> Decoder:
    launcher = worker.fallback if isinstance(worker, NativeWorker) else worker
    target = launcher.state.target
    assert isinstance(target, Decoder)
    return target


@pytest.mark.parametrize(("kernels", "dtype"), ARITHMETIC)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_tokens_equal_those_of_plain_decoding(
    pair: tuple[Path, Path], kernels: str, dtype: str, temperature: float
) -> None:
    params = [sampling(row, temperature) for row in range(4)]
    plain = run(build_worker(config_of(pair, kernels, dtype=dtype, head=False)), params, drafting=[False] * 4)
    for shape in ("chain", "tree"):
        drafted = build_worker(config_of(pair, kernels, dtype=dtype))
        for drafting, chunk in (([True] * 4, 256), ([True, False, True, True], 5)):
            rows = run(drafted, params, drafting=drafting, chunk=chunk, **SHAPES[shape])
            assert [row.out for row in rows] == [row.out for row in plain], shape


@pytest.mark.parametrize("kernels", KERNELS)
def test_every_matrix_is_rounded_by_outputs(pair: tuple[Path, Path], kernels: str) -> None:
    eight, whole = (
        target_of(build_worker(config_of(pair, kernels, head=False, quantization=bits))) for bits in ("int8", "none")
    )
    for one, other in zip(
        (*eight.body.stack.matrices, eight.body.output), (*whole.body.stack.matrices, whole.body.output), strict=True
    ):
        torch.testing.assert_close(one.weight, rounded(other.weight).weight, atol=1e-6, rtol=0)
        assert not torch.equal(one.weight, other.weight)
    assert torch.equal(eight.body.embeddings, whole.body.embeddings)


@needs_cpp
def test_eight_bits_take_half_the_bytes_and_whole_steps_in_a_call(pair: tuple[Path, Path]) -> None:
    eight, whole = (
        build_worker(config_of(pair, "cpp", dtype="bfloat16", quantization=bits)) for bits in ("int8", "none")
    )
    assert isinstance(eight, NativeWorker)
    assert [worker.capacity.report["quantization"] for worker in (eight, whole)] == ["int8", "none"]
    small, large = (int(str(worker.capacity.report["target_bytes"])) for worker in (eight, whole))
    assert small < 0.65 * large  # embeddings, norms and padding stay as they are


def test_other_devices_are_refused(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "device_name", lambda device: "a GPU")
    with pytest.raises(ConfigError, match=r"int8, which CPUs run, and this deployment runs on a GPU; set model\."):
        build._precision(config_of(pair, "torch"), torch.device("cuda", 0))
