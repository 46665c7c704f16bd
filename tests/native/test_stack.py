"""A stack of layers in one C++ call: the same numbers as layer by layer, or the call is not made."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from aerie.engine.attention import make_attention
from aerie.engine.attention.inputs import AttentionShape
from aerie.engine.model import stack as stacks
from aerie.engine.model.layer import Pass
from aerie.engine.model.stack import Stack, through
from aerie.native.kernels.table import cpp_kernels
from tests.engine.attention.attention_cases import HEADS, KV_HEADS, case
from tests.native.cpp_here import CPP, needs_cpp
from tests.native.stacks import HIDDEN, layer

pytestmark = needs_cpp
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


def passes(dim: int, dtype: torch.dtype, *, tree: bool) -> tuple[Pass, Pass, int]:
    """The same pass twice, each on a pool of its own, and its tokens."""
    made = []
    for _ in range(2):
        inputs, pool = case([21, 0, 7], [1, 4, 3], page=4, tree=tree, head_dim=dim, dtype=dtype)
        pool.keys.clamp_(-3, 3)
        pool.values.clamp_(-3, 3)
        shape = AttentionShape(HEADS, KV_HEADS, dim, 4, dtype, CPU)
        attention = make_attention("cpp", shape, CPP)
        tokens = int(inputs.qo_indptr[-1])
        torch.manual_seed(5)
        rotations = torch.polar(torch.ones(tokens, 1, dim // 2), 100 * torch.rand(tokens, 1, dim // 2))
        slots = torch.randperm(12)[:tokens]
        made.append(Pass(rotations, slots, attention.plan(inputs), attention, pool, CPP))
    return made[0], made[1], tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rich", [False, True])
@pytest.mark.parametrize("tree", [False, True])
def test_a_target_s_stack(monkeypatch: pytest.MonkeyPatch, tree: bool, rich: bool, dtype: torch.dtype) -> None:
    stack = Stack((layer(16, dtype, rich=rich), layer(16, dtype, rich=rich)))
    ours, theirs, tokens = passes(16, dtype, tree=tree)
    x = torch.randn(tokens, HIDDEN).to(dtype)
    expected, expected_taps = through(stack, x.clone(), theirs, tapped=(1, 2))
    monkeypatch.setattr(stacks, "through", None)  # the call itself answers
    found, taps = CPP[through](stack, x.clone(), ours, tapped=(2, 1))
    limit = 1e-5 if dtype == torch.float32 else 2e-2
    assert expected_taps is not None and taps is not None and taps.shape == (tokens, 2 * HIDDEN)
    for one, other in ((found, expected), (taps, expected_taps), (ours.pool.keys, theirs.pool.keys)):
        torch.testing.assert_close(one, other, atol=limit, rtol=limit)
    torch.testing.assert_close(ours.pool.values, theirs.pool.values, atol=limit, rtol=limit)


@pytest.mark.parametrize("normed_residual", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_head_s_stack(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, normed_residual: bool) -> None:
    stack = Stack((layer(16, dtype, beside=True, rich=True), layer(16, dtype)), normed_residual=normed_residual)
    ours, theirs, tokens = passes(16, dtype, tree=True)
    x, embedded = torch.randn(2, tokens, HIDDEN).to(dtype).unbind()
    expected, _ = through(stack, x.clone(), theirs, embedded=embedded)
    monkeypatch.setattr(stacks, "through", None)
    found, taps = CPP[through](stack, x.clone(), ours, embedded=embedded)
    assert taps is None
    limit = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, expected, atol=limit, rtol=limit)


def test_of_fp32_the_parts_by_themselves_give_the_same_bits() -> None:
    """So an answer does not depend on which of the two ran a pass."""
    stack = Stack((layer(16, torch.float32), layer(16, torch.float32)))
    ours, theirs, tokens = passes(16, torch.float32, tree=True)
    x = torch.randn(tokens, HIDDEN)
    found, _ = CPP[through](stack, x.clone(), ours)
    assert torch.equal(found, through(stack, x.clone(), theirs)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cuts", [(5,), (1, 2, 18), tuple(range(1, 21))])
def test_chunks_of_a_prompt_change_no_bit(cuts: tuple[int, ...], dtype: torch.dtype) -> None:
    """Down to tokens one by one, which is how they are decoded."""
    stack, x = Stack((layer(16, dtype), layer(16, dtype))), torch.randn(21, HIDDEN).to(dtype)
    rotations = torch.polar(torch.ones(21, 1, 8), 100 * torch.rand(21, 1, 8))
    answers = []
    for bounds in ((0, 21), (0, *cuts, 21)):
        inputs, pool = case([0], [21], page=4, tree=False, head_dim=16, dtype=dtype)
        attention = make_attention("cpp", AttentionShape(HEADS, KV_HEADS, 16, 4, dtype, CPU), CPP)
        places = torch.arange(21)
        slots = inputs.kv_indices[places // 4].long() * 4 + places % 4
        parts = []
        for first, end in pairwise(bounds):
            queries = torch.tensor([0, end - first], dtype=torch.int32)
            own = replace(inputs, qo_indptr=queries, prefix_lens=torch.tensor([first]))
            context = Pass(rotations[first:end], slots[first:end], attention.plan(own), attention, pool, CPP)
            parts.append(CPP[through](stack, x[first:end].clone(), context)[0])
        answers.append(torch.cat(parts))
    assert torch.equal(*answers)


@pytest.mark.parametrize("why", ["sizes", "plan", "dtype"])
def test_what_the_call_cannot_do_goes_layer_by_layer(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    dim, dtype = 16, torch.float64 if why == "dtype" else torch.float32
    stack = Stack((layer(dim, torch.float32),))
    ours, _, tokens = passes(dim, torch.float32, tree=False)
    if why == "sizes":
        monkeypatch.setattr("aerie.native.layers.LANES", 32)
    if why == "plan":
        inputs, _ = case([21, 0, 7], [1, 4, 3], page=4, tree=False, head_dim=dim)
        dense = make_attention("reference")
        ours = Pass(ours.rotations, ours.slots, dense.plan(inputs), dense, ours.pool, CPP)
    called: list[torch.Tensor] = []

    def reference(_: Stack, x: torch.Tensor, context: Pass, **others: object) -> tuple[torch.Tensor, None]:
        called.append(x)
        return x, None

    monkeypatch.setattr(stacks, "through", reference)
    given = torch.randn(tokens, HIDDEN).to(dtype)
    cpp_kernels()[through](stack, given, ours)
    assert called[0] is given
