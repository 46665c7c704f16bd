"""The cases in which kernels are timed beside their references: the dtype that a GPU serves."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from aerie.contracts.config import Config, load_config
from aerie.engine.model.config import read_model_config
from aerie.engine.sampling.choose import Needs, choose
from aerie.engine.state.kv_pool import KVPool
from aerie.probe import fused
from aerie.probe.fused import cases_of, served_dtype
from aerie.spec.kernels.table import faster_kernels
from tests.house import HOME

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(HOME)
    return load_config(HOME / "configs/serve/tiny-dummy.yaml", ["model.dtype=bfloat16"])


def test_a_gpu_s_layers_are_timed_in_the_served_dtype(tiny: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    model = read_model_config(HOME / "configs/shape/tiny/target")
    assert served_dtype(tiny, model, CUDA) is torch.bfloat16
    assert served_dtype(tiny, model, CPU) is torch.float32
    found = {case.reference.__name__: case for case in cases_of(model, 2, CPU, torch.bfloat16)}
    for name in ("normed", "gated", "rotated"):
        first = found[name].arguments[0]
        assert isinstance(first, Tensor) and first.dtype is torch.bfloat16, name
    pools = [value for case in found.values() for value in case.arguments if isinstance(value, KVPool)]
    assert pools and all(pool.keys.dtype is torch.bfloat16 for pool in pools)


def test_a_kernel_that_fails_leaves_the_others_to_be_measured(tiny: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's errors derive from Exception alone, and its asserts from AssertionError."""

    def failing(*_: Any, **__: Any) -> Tensor:
        raise AssertionError("operands must have the same width\nmore of it")

    def honest() -> Any:
        return {case.reference: case.reference for case in cases} | {choose: failing}

    cases = list(cases_of(read_model_config(HOME / "configs/shape/tiny/target"), 1, CPU, torch.float32))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(fused.importlib.util, "find_spec", lambda _: True)
    monkeypatch.setattr(fused, "triton_kernels", honest)
    cells = list(fused.measure_fused(tiny, rows=(1,), repeats=1))
    failed = {cell["kernel"]: cell["failed"] for cell in cells if "failed" in cell}
    assert failed == {"choose": "AssertionError: operands must have the same width"}
    assert all(cell["kernel_microseconds"] is not None for cell in cells if cell["kernel"] != "choose")


def test_choose_is_taken_for_the_kinds_of_rows_that_it_serves_faster() -> None:
    asked: list[str] = []

    def kernel(*_: Any, **__: Any) -> Tensor:
        asked.append("kernel")
        return torch.zeros(1, dtype=torch.int64)

    taken = faster_kernels({choose: kernel}, frozenset({"choose greedy", "normed"}))
    logits, rows = torch.tensor([[0.0, 2.0]]), torch.zeros(1, dtype=torch.int64)
    needs = [Needs(noise=False, filters=False, bans=False), Needs(noise=True, filters=False, bans=False)]
    tables: Any = SimpleNamespace(
        sampling={"temperature": torch.zeros(1)}, noise_keys=torch.zeros(1, dtype=torch.int64)
    )
    assert taken[choose](logits, rows, rows, tables, needs[0]).tolist() == [0]
    assert taken[choose](logits, rows, rows, tables, needs[1]).tolist() == [1] and asked == ["kernel"]
    assert faster_kernels({choose: kernel}, frozenset({"choose"})) == {choose: kernel}
    assert faster_kernels({choose: kernel}, frozenset()) == {}
