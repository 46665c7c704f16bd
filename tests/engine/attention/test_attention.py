"""The CPU backend equals the reference on the golden cases; which backend serves what is said clearly."""

import pytest
import torch

from aerie.contracts.errors import ConfigError
from aerie.engine.attention import make_attention
from aerie.engine.attention.flashinfer_variant import refusal
from aerie.engine.attention.inputs import AttentionShape
from aerie.engine.state.kv_pool import KVPool
from tests.engine.attention.attention_cases import CASES, HEADS, KV_HEADS, POISON, case
from tests.native.cpp_here import CPP, needs_cpp


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cpp", marks=needs_cpp)])
@pytest.mark.parametrize(("shape", "page", "tree"), CASES)
def test_a_cpu_s_backends_equal_the_reference(
    shape: tuple[list[int], list[int]], page: int, tree: bool, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths, counts = shape
    inputs, pool = case(lengths, counts, page=page, tree=tree)
    query = torch.randn(sum(counts), 4, 16)
    own = AttentionShape(HEADS, KV_HEADS, 16, page, torch.float32, torch.device("cpu"))
    reference, cpu = make_attention("reference"), make_attention(backend, own, CPP)
    planned = cpu.plan(inputs)
    for layer in range(2):
        expected = reference.run(reference.plan(inputs), query, pool, layer)
        torch.testing.assert_close(cpu.run(planned, query, pool, layer), expected, atol=1e-5, rtol=1e-4)
        assert expected.abs().max() < POISON / 10, "a poisoned slot was seen"


def test_move_gathers_before_it_writes() -> None:
    pool = KVPool(layers=1, pages=2, page_size=4, kv_heads=1, head_dim=1, dtype=torch.float32)
    pool.keys[0, :, 0, 0] = torch.arange(8.0)
    pool.move(torch.tensor([5, 6, 7]), torch.tensor([4, 5, 6]))
    assert pool.keys[0, :, 0, 0].tolist() == [0, 1, 2, 3, 5, 6, 7, 7]


def test_pages_are_the_pool_s_own_memory() -> None:
    pool = KVPool(layers=2, pages=3, page_size=4, kv_heads=2, head_dim=8, dtype=torch.float32)
    keys, values = pool.paged(1)
    keys[2, 1], values[2, 1] = 1, 2
    assert keys.shape == values.shape == (3, 4, 2, 8)
    assert keys.stride() == values.stride()
    assert (pool.keys[1, 9] == 1).all() and (pool.values[1, 9] == 2).all()


def shape_of(device: str = "cuda", **changes: object) -> AttentionShape:
    given: dict[str, object] = {
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "page_size": 16,
        "dtype": torch.bfloat16,
        "device": torch.device(device),
    }
    return AttentionShape(**{**given, **changes})  # type: ignore[arg-type]


def test_auto_on_a_cpu_is_the_cpu_s() -> None:
    assert make_attention("auto").name == make_attention("auto", shape_of("cpu")).name == "cpu"


@pytest.mark.parametrize("name", ["flashinfer", "triton"])
def test_a_gpu_s_backend_on_a_cpu_says_what_to_do(name: str) -> None:
    with pytest.raises(ConfigError, match=r"needs a GPU.*engine\.attention=auto"):
        make_attention(name, shape_of("cpu"))


@pytest.mark.parametrize(("name", "package"), [("flashinfer", "flashinfer-python"), ("triton", "triton")])
def test_a_missing_package_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=rf"{package} is not installed; pip install -e '\.\[gpu\]'"):
        make_attention(name, shape_of())
    assert make_attention("auto", shape_of()).name == "reference"


def test_an_unknown_backend_is_told_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="auto, cpp, cpu, reference, flashinfer, triton"):
        make_attention("xformers")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": torch.float32}, "16 bits and the model computes in float32"),
        ({"head_dim": 80}, "head sizes are 64, 128, 256 and the model's is 80"),
        ({"heads": 30}, "30 query heads do not divide among 8 KV heads"),
    ],
)
def test_what_flashinfer_lacks_is_named(changes: dict[str, object], reason: str) -> None:
    assert refusal(shape_of()) is None
    assert reason in str(refusal(shape_of(**changes)))
