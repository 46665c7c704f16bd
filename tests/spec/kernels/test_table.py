"""Which kernels a GPU takes: those that a committed result names, and products by trials at load."""

import json
from typing import Any

import pytest
import torch

from aerie.contracts.config import parse_config
from aerie.contracts.errors import ConfigError
from aerie.engine.bindings import REFERENCES
from aerie.engine.model.norm import normed
from aerie.engine.model.projection import skinny
from aerie.spec.kernels import table
from aerie.worker import choose_kernels
from tests.house import HOME

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with Triton whose GPU no result names."""

    def triton_s(*_: Any) -> Any:
        raise AssertionError("only its name is asked for")

    monkeypatch.setattr(table.importlib.util, "find_spec", lambda _: True)
    monkeypatch.setattr(table, "device_name", lambda _: "a GPU")
    monkeypatch.setattr(table, "triton_kernels", lambda: {normed: triton_s})
    monkeypatch.setattr(table, "_triton_product", lambda: triton_s)


def kernels(setting: str, products: str) -> Any:
    return choose_kernels(parse_config({"engine": {"kernels": setting, "products": products}}), GPU)


def test_products_are_tried_before_any_kernel_has_a_result() -> None:
    taken = kernels("auto", "auto")
    assert taken[skinny] is not skinny and taken[normed] is normed
    assert str(taken.products) == "library" and taken.report == "triton: skinny"


def test_the_library_alone_leaves_the_references() -> None:
    assert kernels("auto", "library") is REFERENCES
    taken = kernels("triton", "library")
    assert taken[skinny] is skinny and taken[normed] is not normed


@pytest.mark.parametrize(
    ("products", "ways"), [("auto", ["cublaslt", "triton"]), ("inductor", ["cublaslt", "triton", "inductor"])]
)
def test_what_is_tried(products: str, ways: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(table, "SkinnyTrials", lambda ways, *_: tried.extend(ways))
    kernels("triton", products)
    assert tried == ways


@pytest.mark.parametrize("products", ["library", "inductor"])
def test_a_gpu_s_products_are_refused_on_a_cpu(products: str) -> None:
    config = parse_config({"engine": {"products": products}})
    with pytest.raises(ConfigError, match=rf"engine\.products is {products}, which is a GPU's"):
        choose_kernels(config, torch.device("cpu"))


@pytest.mark.parametrize("device", table.PAYING)
def test_a_kernel_pays_if_the_result_says_so_in_every_case(device: str) -> None:
    cells = json.loads((HOME / "bench/results/gpu/kernels.json").read_text())["cells"]
    gains: dict[str, list[float]] = {}
    for cell in cells:
        if device in cell["device"]:
            name = f"choose {cell['case']}" if cell["kernel"] == "choose" else cell["kernel"]
            gains.setdefault(name, []).append(cell["gain"])
    assert table.PAYING[device] == {name for name, found in gains.items() if min(found) > 1}
