"""A layer's small operations and the cut at a row's end, as kernels: equal to the torch that they stand in for."""

import pytest
import torch
from torch.nn.functional import silu

from aerie.contracts.step import Ending
from aerie.engine.model.norm import RmsNorm
from aerie.engine.model.rope import rotate_
from aerie.engine.sampling.ending import cut
from aerie.engine.state.kv_pool import KVPool
from aerie.engine.state.row_tables import RowTables
from tests.engine.triton_here import DEVICE, GPU, TRITON, needs_triton

pytestmark = needs_triton
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if GPU else [])]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def close(ours: torch.Tensor, expected: torch.Tensor) -> None:
    limit = TOLERANCE[expected.dtype]
    assert ours.dtype == expected.dtype
    torch.testing.assert_close(ours, expected, atol=limit, rtol=limit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 320])
def test_norm(dtype: torch.dtype, size: int) -> None:
    from aerie.engine.kernels.layer import normed

    norm = RmsNorm(torch.randn(size, device=DEVICE), 1e-5)
    x = 3 * torch.randn(5, size, device=DEVICE).to(dtype)
    x[2] = 0
    close(normed(x, norm.gain, norm.floor), norm(x))
    wide = torch.randn(3, 6, size, device=DEVICE).to(dtype)
    close(normed(wide[:, 1:5], norm.gain, norm.floor), norm(wide[:, 1:5]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [64, 80])
def test_rotation_with_the_write_to_the_pool(dtype: torch.dtype, dim: int) -> None:
    from aerie.engine.kernels.layer import rotated

    heads, kv_heads, tokens = 4, 2, 5
    pools = [
        KVPool(layers=2, pages=4, page_size=4, kv_heads=kv_heads, head_dim=dim, dtype=dtype, device=DEVICE)
        for _ in range(2)
    ]
    merged = torch.randn(tokens, heads + 2 * kv_heads, dim, device=DEVICE).to(dtype)
    rotations = torch.polar(torch.ones(tokens, 1, dim // 2), 100 * torch.rand(tokens, 1, dim // 2)).to(DEVICE)
    slots = torch.tensor([3, 15, 0, 8, 9], device=DEVICE)
    ours = merged.clone()
    rotated(ours, heads, rotations, pools[0], 1, slots)
    rotate_(merged, heads + kv_heads, rotations)
    pools[1].write(1, slots, merged[:, heads:])
    close(ours[:, :heads], merged[:, :heads])
    close(pools[0].keys, pools[1].keys)
    assert torch.equal(pools[0].values, pools[1].values)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gate(dtype: torch.dtype) -> None:
    from aerie.engine.kernels.layer import gated

    both = 4 * torch.randn(3, 2 * 1500, device=DEVICE).to(dtype)
    gate, up = both.chunk(2, -1)
    close(gated(both), silu(gate).mul_(up))


def test_cut() -> None:
    """Rows that stop, that are full, that go on, that had ended, and both ends at once."""
    torch.manual_seed(0)
    rows, width = 25, 5
    tables = RowTables(rows, 1, 16, DEVICE)
    tables.stop_ids[:, 0], tables.stop_ids[:, 9] = 3, 7
    tables.limits.copy_(torch.randint(0, 9, (rows + 1,)))
    tokens = torch.randint(0, 12, (rows, width), device=DEVICE)
    counts = torch.randint(1, width + 1, (rows,), device=DEVICE)
    lengths = torch.randint(0, 9, (rows,), device=DEVICE)
    done = torch.rand(rows, device=DEVICE) < 0.2
    given = (tokens, counts, lengths, done, torch.randperm(rows, device=DEVICE), tables)
    ours, expected = TRITON[cut](*given), cut(*given)
    assert torch.equal(ours.counts, expected.counts) and torch.equal(ours.endings, expected.endings)
    assert torch.equal(ours.done, expected.done) and {int(kind) for kind in Ending} <= set(expected.endings.tolist())
