"""FlashInfer's backend equals the reference, its kernel emulated from what the planner wrote.

Each case runs with the planner in Python, and with the wheel's own where that is installed. What no CPU can show is
the arithmetic of the compiled kernel.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from aerie.contracts.errors import ConfigError
from aerie.engine.attention import make_attention
from aerie.engine.attention.flashinfer import FlashInferAttention
from aerie.engine.attention.inputs import AttentionInputs, AttentionShape
from aerie.engine.state.kv_pool import KVPool
from tests.engine.attention.attention_cases import CASES, HEADS, KV_HEADS, POISON, case, fill, fixed_pages, tree_words
from tests.engine.attention.flashinfer_emulator import CAUSAL, CUSTOM, EmulatedModule
from tests.engine.attention.flashinfer_here import PROCESSORS, real_module
from tests.engine.attention.flashinfer_planner import FIELDS

DIM = 64


@pytest.fixture(params=["python", "real"])
def module(request: pytest.FixtureRequest) -> EmulatedModule:
    return EmulatedModule(real_module() if request.param == "real" else None)


def backend(module: EmulatedModule, page: int = 16, **changes: Any) -> FlashInferAttention:
    shape = AttentionShape(HEADS, KV_HEADS, DIM, page, torch.bfloat16, torch.device("cpu"))
    return FlashInferAttention(replace(shape, **changes), module=module, processors=PROCESSORS)


def given(
    lengths: list[int], counts: list[int], *, page: int = 16, tree: bool, slack: int = 5
) -> tuple[AttentionInputs, KVPool, torch.Tensor]:
    inputs, pool = case(lengths, counts, page=page, tree=tree, slack=slack, head_dim=DIM, dtype=torch.bfloat16)
    return inputs, pool, torch.randn(sum(counts), HEADS, DIM).bfloat16()


def check(module: EmulatedModule, inputs: AttentionInputs, query: torch.Tensor, pool: KVPool) -> None:
    """Before rounding the last answer equals the reference's."""
    reference = make_attention("reference")
    expected = reference.run(reference.plan(inputs), query.float(), pool, 1)
    torch.testing.assert_close(module.wide, expected, atol=1e-5, rtol=1e-4)
    assert expected.abs().max() < POISON / 10, "a poisoned slot was seen"


LONG = (([2040, 120, 0, 515], [1, 64, 8, 5]), 16, True), (([1023], [33]), 1, False)


@pytest.mark.parametrize(("shape", "page", "tree"), [*CASES, *LONG])
def test_equals_reference(module: EmulatedModule, shape: tuple[list[int], list[int]], page: int, tree: bool) -> None:
    inputs, pool, query = given(*shape, page=page, tree=tree)
    attention = backend(module, page)
    answer = attention.run(attention.plan(inputs), query, pool, 1)
    assert answer.dtype == torch.bfloat16
    check(module, inputs, query, pool)


def test_exact_lengths_are_left_to_the_kernel_s_own_mask(module: EmulatedModule) -> None:
    """A prefill skips the positions above the diagonal; a bound may not, since there they are not the last ones."""
    attention = backend(module)
    for slack, mode in ((0, CAUSAL), (5, CUSTOM)):
        inputs, pool, query = given([130, 0, 17], [20, 300, 1], tree=False, slack=slack)
        attention.run(attention.plan(inputs), query, pool, 1)
        assert module.calls[-1][12] == mode
        check(module, inputs, query, pool)


def test_levels_of_a_draft_share_a_plan(module: EmulatedModule) -> None:
    inputs, pool, query = given([300, 5], [4, 4], tree=False)
    attention = backend(module)
    planned, words = attention.plan(inputs), tree_words([4, 4], 7)
    attention.run(attention.see(planned, words), query, pool, 1)
    check(module, replace(inputs, words=words), query, pool)


def test_words_of_a_draft_may_point_past_the_queries_of_a_level(module: EmulatedModule) -> None:
    """Scratch nodes of earlier levels: a level's two queries a row see up to the row's 64th node."""
    inputs, pool, query = given([200, 3], [64, 64], tree=True)
    assert inputs.words is not None
    level = torch.tensor([62, 63, 126, 127])
    part = replace(inputs, qo_indptr=torch.tensor([0, 2, 4], dtype=torch.int32), words=inputs.words[level])
    attention = backend(module)
    attention.run(attention.plan(part), query[level], pool, 1)
    check(module, part, query[level], pool)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("counts", [[8, 8, 8], [1, 16, 7]])
def test_a_held_plan_serves_other_pages_and_lengths(module: EmulatedModule, counts: list[int], split: bool) -> None:
    """What a captured graph relies on: addresses, grid and the planner's numbers stay as pages and lengths change."""
    first, *_ = given([5, 130, 70], counts, tree=True)
    second, pool, query = given([700, 0, 1030], counts, tree=True)
    attention = backend(module)
    lengths, pages = first.prefix_lens.clone(), fixed_pages(first, 256)
    held = attention.hold(replace(first, prefix_lens=lengths), pages, split=split)
    addresses = [tensor.data_ptr() for tensor in (*held.arrays, held.kv_indices, held.schedule.memory, held.scratch)]
    numbers = list(held.info)
    for inputs in (second, first, second):
        fill(pages, inputs)
        attention.renew(held, inputs.kv_indptr)
        lengths.copy_(inputs.prefix_lens)
    attention.run(held, query, pool, 1)
    check(module, second, query, pool)
    kept = (*held.arrays, held.kv_indices, held.schedule.memory, held.scratch)
    assert addresses == [tensor.data_ptr() for tensor in kept] and numbers == list(held.info)


def plans_of(module: EmulatedModule) -> list[Any]:
    """Filled by each call of the planner."""
    honest, calls = module.plan, list[Any]()

    def counted(*given: Any) -> Any:
        calls.append(given)
        return honest(*given)

    module.plan = counted
    return calls


def test_a_split_is_planned_again_when_pages_are_more_or_fewer(module: EmulatedModule) -> None:
    """The planner copies to the device: most steps of a row stay within its last page."""
    first, *_ = given([130], [4], tree=True)
    calls, attention = plans_of(module), backend(module)
    held = attention.hold(first, fixed_pages(first, 64), split=True)
    assert attention.splits(1, 4) and dict(zip(FIELDS, held.info, strict=True))["split_kv"] == 1
    attention.renew(held, first.kv_indptr.clone())
    assert len(calls) == 1
    attention.renew(held, given([700], [4], tree=True)[0].kv_indptr)
    assert len(calls) == 2


@pytest.mark.parametrize(("rows", "split"), [(1, False), (2 * PROCESSORS // KV_HEADS, True)])
def test_short_rows_and_many_rows_are_not_split(module: EmulatedModule, rows: int, split: bool) -> None:
    """As many blocks as fit the device leave the planner nothing to split. Then no layer merges, the grid has no
    surplus, and a plan holds for all lengths.
    """
    first, pool, query = given([60] * rows, [4] * rows, tree=True)
    calls, attention = plans_of(module), backend(module)
    held = attention.hold(first, fixed_pages(first, first.kv_indices.numel()), split=split)
    info = dict(zip(FIELDS, held.info, strict=True))
    assert (info["split_kv"], info["padded_batch_size"]) == (0, rows)
    attention.renew(held, given([700] * rows, [4] * rows, tree=True)[0].kv_indptr)
    assert len(calls) == 1
    attention.run(held, query, pool, 1)
    check(module, first, query, pool)


def test_a_held_plan_refuses_other_rows(module: EmulatedModule) -> None:
    attention = backend(module)
    inputs = given([5, 130], [4, 4], tree=True)[0]
    held = attention.hold(inputs, fixed_pages(inputs, 64), split=True)
    with pytest.raises(AssertionError, match="its own number of rows"):
        attention.renew(held, given([5, 130, 7], [4, 4, 4], tree=True)[0].kv_indptr)


@pytest.mark.parametrize("dependent", [True, False])
def test_dependent_launch_is_passed_on(module: EmulatedModule, dependent: bool) -> None:
    inputs, pool, query = given([20], [3], tree=False)
    attention = FlashInferAttention(backend(module)._shape, module, PROCESSORS, dependent=dependent)
    attention.run(attention.plan(inputs), query, pool, 1)
    assert module.calls[-1][15] is dependent


def test_a_plan_that_a_later_one_replaced_is_refused(module: EmulatedModule) -> None:
    inputs, pool, query = given([20], [3], tree=False)
    attention = backend(module)
    early = attention.plan(inputs)
    attention.plan(inputs)
    with pytest.raises(AssertionError, match="a later plan took"):
        attention.run(early, query, pool, 1)


def test_true_lengths_in_the_kernel_s_arrays_would_be_wrong(module: EmulatedModule) -> None:
    """The planted bug: planned with a bound and run with true lengths, partial results lie elsewhere than expected."""
    inputs, pool, query = given([120, 2040], [4, 4], page=1, tree=True, slack=130)
    attention = backend(module, 1)
    planned = attention.plan(inputs)
    counts = inputs.prefix_lens + 4
    true_indptr = torch.tensor([0, int(counts[0]), int(counts.sum())], dtype=torch.int32)
    own = [inputs.kv_indices[int(inputs.kv_indptr[r]) :][: int(counts[r])] for r in range(2)]
    planned.arrays = (planned.arrays[0], true_indptr, planned.arrays[2])
    planned.kv_indices = torch.cat(own)
    with pytest.raises(AssertionError):
        attention.run(planned, query, pool, 1)
        check(module, inputs, query, pool)


def test_a_model_that_flashinfer_cannot_serve_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the model computes in float32; set engine\.attention=triton"):
        backend(EmulatedModule(), dtype=torch.float32)
