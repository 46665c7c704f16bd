"""Several threads share a kernel's outputs and change no bit of them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from aerie.engine.attention import make_attention
from aerie.engine.attention.inputs import AttentionShape
from aerie.native.library import library
from aerie.native.products import Panels, pack
from tests.engine.attention.attention_cases import HEADS, KV_HEADS, case
from tests.native.cpp_here import CPP, needs_cpp

pytestmark = needs_cpp


@pytest.fixture(autouse=True)
def alone_again() -> Iterator[None]:
    yield
    library().use_threads(1)


def panels_of(out: int, wide: int) -> Panels:
    packed = pack(torch.randn(out, wide).bfloat16().float())
    assert isinstance(packed, Panels)
    return packed


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize(("out", "wide"), [(1408, 256), (1000, 1100), (40, 4096), (3, 8)])
def test_products(threads: int, out: int, wide: int) -> None:
    panels = panels_of(out, wide)
    for tokens in (1, 2, 7, 16, 70, 200):
        x, residual = torch.randn(tokens, wide), torch.randn(tokens, out)
        library().use_threads(1)
        alone, added = panels(x, None), panels.add_to(residual.clone(), x, None)
        library().use_threads(threads)
        for _ in range(3):
            assert torch.equal(panels(x, None), alone)
            assert torch.equal(panels.add_to(residual.clone(), x, None), added)


@pytest.mark.parametrize("tree", [False, True])
def test_attention(tree: bool) -> None:
    counts = [40, 3, 17, 1]
    inputs, pool = case([0, 37, 300, 5], counts, page=16, tree=tree)
    query = torch.randn(sum(counts), HEADS, 16)
    attention = make_attention("cpp", AttentionShape(HEADS, KV_HEADS, 16, 16, torch.float32, torch.device("cpu")), CPP)
    alone = attention.run(attention.plan(inputs), query, pool, 0)
    for threads in (2, 3):
        library().use_threads(threads)
        assert torch.equal(attention.run(attention.plan(inputs), query, pool, 0), alone)


def test_callers_at_once_each_get_their_own() -> None:
    library().use_threads(3)
    panels = [panels_of(512 + 64 * i, 256) for i in range(4)]
    xs = [torch.randn(16, 256) for _ in panels]
    expected = [each(x, None) for each, x in zip(panels, xs, strict=True)]

    def ask(i: int) -> bool:
        return all(torch.equal(panels[i](xs[i], None), expected[i]) for _ in range(100))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(4)))


def test_threads_that_slept_take_part_again() -> None:
    """The number of threads may change at any time, and work that comes later is done."""
    panels, x = panels_of(1024, 256), torch.randn(16, 256)
    expected = panels(x, None)
    for threads in (4, 1, 2, 3, 2):
        library().use_threads(threads)
        assert all(torch.equal(panels(x, None), expected) for _ in range(5))
        assert len(list(Path("/proc/self/task").iterdir())) >= threads
