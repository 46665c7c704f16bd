"""The C++ kernels of a CPU: each equal to the torch that it stands in for, built once, and refused by name."""

from contextlib import closing
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aerie.contracts.config import Config, parse_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.spec_section import SpecConfig
from aerie.engine import device
from aerie.engine.attention import make_attention
from aerie.engine.attention.inputs import AttentionShape
from aerie.engine.model.layer import MlpWeights, gated, mlp, rotated
from aerie.engine.model.matrix import rounded
from aerie.engine.model.norm import RmsNorm, normed
from aerie.engine.model.projection import Precision, Projection
from aerie.engine.sampling.choose import FILTER_COLUMNS, Needs, choose, filtered, likeliest
from aerie.engine.sampling.noise import gumbel
from aerie.engine.state.kv_pool import KVPool
from aerie.engine.state.row_tables import RowTables
from aerie.native.kernels import choose as native_choose
from aerie.native.products import Panels, pack, pack_int8
from aerie.worker import build_worker, choose_kernels
from tests.engine.attention.attention_cases import case
from tests.engine.sampling.test_choose import FILTERS, VOCABULARY, kept
from tests.house import HOME
from tests.native.cpp_here import CPP, needs_cpp

CPU = torch.device("cpu")


def config_of(kernels: str) -> Config:
    engine = {"kernels": kernels, "products": "panels", "threads": 1}
    return parse_config({"engine": engine, "model": {"path": str(HOME / "models/demo/target")}})


def close(ours: torch.Tensor, reference: torch.Tensor) -> None:
    """But for the last bits; of 16-bit numbers, for one rounding."""
    limit = 1e-5 if reference.dtype == torch.float32 else 2e-2
    assert ours.dtype == reference.dtype
    torch.testing.assert_close(ours, reference, atol=limit, rtol=limit)


@needs_cpp
@pytest.mark.parametrize("size", [64, 256, 320, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm(size: int, dtype: torch.dtype) -> None:
    kernel, norm = CPP[normed], RmsNorm(torch.randn(size), 1e-5)
    x = (3 * torch.randn(5, size)).to(dtype)
    x[2] = 0
    close(kernel(x, norm.gain, norm.floor), norm(x))
    wide = torch.randn(3, 6, size).to(dtype)
    torch.testing.assert_close(kernel(wide[:, 1:5], norm.gain, norm.floor), norm(wide[:, 1:5]))


@needs_cpp
@pytest.mark.parametrize("dim", [64, 80])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_with_the_write_to_the_pool(dim: int, dtype: torch.dtype) -> None:
    heads, kv_heads, tokens = 4, 2, 5
    pools = [KVPool(layers=2, pages=4, page_size=4, kv_heads=kv_heads, head_dim=dim, dtype=dtype) for _ in range(2)]
    merged = torch.randn(tokens, heads + 2 * kv_heads, dim).to(dtype)
    rotations = torch.polar(torch.ones(tokens, 1, dim // 2), 100 * torch.rand(tokens, 1, dim // 2))
    slots, ours = torch.tensor([3, 15, 0, 8, 9]), merged.clone()
    CPP[rotated](ours, heads, rotations, pools[0], 1, slots)
    rotated(merged, heads, rotations, pools[1], 1, slots)
    close(ours, merged)
    close(pools[0].keys, pools[1].keys)
    assert torch.equal(pools[0].values, pools[1].values)


@needs_cpp
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("hidden", "inner", "rounds"), [(64, 176, False), (64, 176, True), (40, 48, False)])
def test_mlp(hidden: int, inner: int, rounds: bool, biased: bool, dtype: torch.dtype) -> None:
    def projection(out: int, wide: int) -> Projection:
        weight = (torch.randn(out, wide) * wide**-0.5).bfloat16().to(dtype)
        precision = Precision.INT8 if rounds else Precision.STORED
        return Projection(weight, torch.randn(out).to(dtype) if biased else None, CPP, precision)

    weights = MlpWeights(projection(2 * inner, hidden), projection(hidden, inner), inner)
    norm, residual = RmsNorm(torch.randn(hidden), 1e-5), (3 * torch.randn(5, hidden)).to(dtype)
    expected = mlp(residual.clone(), norm, weights, CPP)
    assert expected is not residual
    given = residual.clone()
    assert CPP[mlp](given, norm, weights, CPP) is given
    torch.testing.assert_close(given, expected, atol=1e-5 if dtype == torch.float32 else 0.1, rtol=2e-2)


@needs_cpp
@pytest.mark.parametrize("inner", [48, 704, 20])
def test_gate_of_any_size(inner: int) -> None:
    both = torch.randn(3, 2 * inner)
    both[0, :4] = torch.tensor([-200.0, -88.0, 88.0, 200.0])
    torch.testing.assert_close(CPP[gated](both), gated(both), atol=1e-6, rtol=2e-6)


@needs_cpp
def test_noise_is_the_reference_s_but_for_the_last_bits_of_the_logarithms() -> None:
    keys = torch.tensor([1, 2**40 + 3, -(2**62), 2**63 - 1])
    positions = torch.tensor([0, 1, 77, 131_071], dtype=torch.int32)
    tokens = torch.randperm(200_003)
    ours, theirs = CPP[gumbel](keys, positions, tokens), gumbel(keys, positions, tokens)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    assert ours.isfinite().all()


@needs_cpp
@pytest.mark.parametrize("count", [5, 16, 33, 4096])
@pytest.mark.parametrize("noisy", [False, True])
def test_the_choice_is_the_reference_s(count: int, noisy: bool) -> None:
    tables = RowTables(4, 1, 16)
    tables.noise_keys.copy_(torch.tensor([11, 2**62 + 5, 1 << 40, 77, 0]))
    tables.sampling["temperature"].copy_(torch.tensor([0.0, 0.7, 1.0, 1.9, 0.0]))
    rows = torch.arange(40) % 4
    logits, noise = 4 * torch.randn(40, count), torch.randn(40, count)
    tables.stop_ids[1, 0], tables.min_lengths[1] = count - 1, 1 << 20
    logits[1, count - 1] = 100.0
    for bans in (False, True):
        given = (logits, rows, rows + 9, tables, Needs(noise=noisy, filters=False, bans=bans))
        assert torch.equal(CPP[choose](*given, noise=noise), choose(*given, noise=noise))


@needs_cpp
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
@pytest.mark.parametrize("count", [5, 16, 33, 4099])
def test_the_choice_is_the_same_where_noise_is_made_only_for_what_could_win(count: int, spread: float) -> None:
    tables = RowTables(3, 1, 16)
    tables.noise_keys.copy_(torch.tensor([11, 2**62 + 5, -77, 0]))
    tables.sampling["temperature"].copy_(torch.tensor([0.3, 1.0, 2.0, 0.0]))
    rows, positions = torch.arange(400) % 4, torch.arange(400, dtype=torch.int32)
    logits = spread * torch.randn(400, count)
    noise = CPP[gumbel](tables.noise_keys[rows], positions, torch.arange(count))
    given = (logits, rows, positions, tables, Needs(noise=True, filters=False, bans=False))
    assert torch.equal(CPP[choose](*given), CPP[choose](*given, noise=noise))


@needs_cpp
@pytest.mark.parametrize("count", [3, 16, 40])
def test_of_equals_the_first_is_chosen(count: int) -> None:
    logits = torch.zeros(count, count).tril_().mul_(5)  # row r: equal peaks at 0 .. r
    logits[:, 0] = torch.where(torch.arange(count) == 0, 5.0, -1.0)
    expected = [0] + [1] * (count - 1)
    assert CPP[likeliest](logits).tolist() == expected
    assert CPP[likeliest](torch.full((2, count), -torch.inf)).tolist() == [0, 0]


@needs_cpp
@given(st.lists(FILTERS, min_size=1, max_size=4), st.integers(0, 2**31))
def test_filters_leave_what_a_loop_leaves(filters: list[tuple[float, int, float]], seed: int) -> None:
    logits = 2 * torch.randn(len(filters), VOCABULARY, generator=torch.Generator().manual_seed(seed))
    tables, rows = RowTables(len(filters), 1, 16), torch.arange(len(filters))
    tables.sampling["temperature"][rows] = 0.7
    for row, own in enumerate(filters):
        for name, value in zip(FILTER_COLUMNS, own, strict=True):
            tables.sampling[name][row] = value
    least = native_choose._edges(logits, tables.sampling["temperature"][rows], rows, tables)
    for row, (min_p, top_k, top_p) in enumerate(filters):
        scaled = logits[row] / 0.7
        expected = kept(scaled.double().tolist(), min_p=min_p, top_k=top_k, top_p=top_p)
        assert set(torch.nonzero(scaled >= least[row]).flatten().tolist()) == expected


@needs_cpp
@pytest.mark.parametrize("flat", [0.1, 1.0, 6.0])
def test_filters_of_a_large_vocabulary_leave_what_sorting_leaves(flat: float) -> None:
    """From a handful of tokens to nearly all of them; ties at an edge stay."""
    torch.manual_seed(3)
    tables = RowTables(40, 1, 16)
    tables.sampling["temperature"].fill_(0.9)
    tables.sampling["min_p"].copy_(torch.tensor([0.0, 0.001, 0.05]).repeat(14)[:41])
    tables.sampling["top_k"].copy_(torch.tensor([0, 3, 50, 2000, 9999]).repeat(9)[:41])
    tables.sampling["top_p"].copy_(torch.tensor([1.0, 0.1, 0.6, 0.95, 0.999, 1.0, 0.3]).repeat(6)[:41])
    tables.sampling["temperature"][7] = 0.0
    rows = torch.arange(41)
    logits = (torch.randn(41, 4001) * flat).mul(16).round() / 16
    scaled = logits / 0.9
    expected = filtered(scaled, *(tables.sampling[name] for name in FILTER_COLUMNS)) > -torch.inf
    found = scaled >= native_choose._edges(logits, tables.sampling["temperature"], rows, tables)[:, None]
    assert found[7].all()
    expected[7] = True
    assert torch.equal(found, expected)


@needs_cpp
def test_a_query_s_attention_does_not_depend_on_what_runs_beside_it() -> None:
    """Bit for bit: rows, and the nodes of one row, are computed one by one."""
    lengths, counts = [37, 200, 5], [4, 1, 8]
    shape = AttentionShape(4, 2, 64, 16, torch.float32, CPU)
    inputs, pool = case(lengths, counts, page=16, tree=True, head_dim=64)
    query, attention = torch.randn(sum(counts), 4, 64), make_attention("cpp", shape, CPP)
    together = attention.run(attention.plan(inputs), query, pool, 0)
    assert inputs.words is not None
    first = replace(
        inputs,
        qo_indptr=inputs.qo_indptr[:2].clone(),
        kv_indptr=inputs.kv_indptr[:2].clone(),
        prefix_lens=inputs.prefix_lens[:1].clone(),
        words=inputs.words[:4].clone(),
    )
    assert torch.equal(attention.run(attention.plan(first), query[:4], pool, 0), together[:4])


@needs_cpp
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [2, 4, 14])
@pytest.mark.parametrize("queries", range(1, 9))
def test_lines_that_share_keys_are_computed_as_alone(heads: int, queries: int, dtype: torch.dtype) -> None:
    """Bit for bit, however many of them fit the registers at once, and whether what they share is prepared first."""
    inputs, pool = case([21], [queries], page=16, tree=False, head_dim=64, dtype=dtype)
    query = torch.randn(queries, heads, 64)
    attention = make_attention("cpp", AttentionShape(heads, 2, 64, 16, dtype, CPU), CPP)
    together = attention.run(attention.plan(inputs), query, pool, 0)
    for place in range(queries):
        alone = replace(
            inputs, qo_indptr=torch.tensor([0, 1], dtype=torch.int32), prefix_lens=torch.tensor([21 + place])
        )
        found = attention.run(attention.plan(alone), query[place : place + 1].contiguous(), pool, 0)
        assert torch.equal(found, together[place : place + 1])


@needs_cpp
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cut", [1, 16, 33, 46])
def test_a_prompt_s_attention_does_not_depend_on_its_chunks(cut: int, dtype: torch.dtype) -> None:
    """Nor does a token's, decoded by itself: bit for bit."""
    inputs, pool = case([0], [47], page=16, tree=False, head_dim=64, dtype=dtype)
    query = torch.randn(47, 4, 64).to(dtype)
    attention = make_attention("cpp", AttentionShape(4, 2, 64, 16, dtype, CPU), CPP)
    whole = attention.run(attention.plan(inputs), query, pool, 0)
    rest = replace(inputs, qo_indptr=torch.tensor([0, 47 - cut], dtype=torch.int32), prefix_lens=torch.tensor([cut]))
    assert torch.equal(attention.run(attention.plan(rest), query[cut:], pool, 0), whole[cut:])


@needs_cpp
def test_attention_that_looks_for_some_queries_at_a_time_is_the_same() -> None:
    """Scores of all queries would be two gigabytes at a long context of many heads."""
    inputs, pool = case([3000], [70], page=16, tree=False, head_dim=16)
    query = torch.randn(70, 4, 16)
    attention = make_attention("cpp", AttentionShape(4, 2, 16, 16, torch.float32, CPU), CPP)
    dense = make_attention("reference")
    found = attention.run(attention.plan(inputs), query, pool, 0)
    torch.testing.assert_close(found, dense.run(dense.plan(inputs), query, pool, 0), atol=1e-5, rtol=1e-5)


@needs_cpp
@pytest.mark.parametrize("tree", [False, True])
def test_attention_over_bf16_is_that_over_the_same_numbers_in_fp32(tree: bool) -> None:
    lengths, counts = [37, 200, 0], [4, 1, 8]
    made = []
    for dtype in (torch.float32, torch.bfloat16):
        inputs, pool = case(lengths, counts, page=16, tree=tree, head_dim=64, dtype=dtype)
        if dtype == torch.float32:
            pool.keys.copy_(pool.keys.bfloat16())
            pool.values.copy_(pool.values.bfloat16())
        torch.manual_seed(7)
        query = torch.randn(sum(counts), 4, 64).bfloat16().to(dtype)
        attention = make_attention("cpp", AttentionShape(4, 2, 64, 16, dtype, CPU), CPP)
        made.append(attention.run(attention.plan(inputs), query, pool, 1))
    assert torch.equal(made[0].bfloat16(), made[1])


@needs_cpp
@pytest.mark.parametrize("biased", [False, True])
def test_products_of_bf16_are_rounded_once(biased: bool) -> None:
    weight, bias = torch.randn(70, 50).bfloat16(), torch.randn(70).bfloat16() if biased else None
    x, residual = torch.randn(4, 50).bfloat16(), torch.randn(4, 70).bfloat16()
    projection = Projection(weight, bias, CPP)
    exact = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    assert projection(x).dtype == torch.bfloat16 and torch.equal(projection.weight, weight)
    torch.testing.assert_close(projection(x).double(), exact, atol=1e-3, rtol=2**-8)
    added = projection.add_to(residual.clone(), x)
    torch.testing.assert_close(added.double(), exact + residual.double(), atol=1e-3, rtol=2**-8)


@needs_cpp
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 6, 14, 15, 33])
def test_a_row_s_product_does_not_depend_on_how_many_there_are(tokens: int) -> None:
    for outputs, inputs in ((100, 72), (40, 2100)):
        weight, x = torch.randn(outputs, inputs).bfloat16().float(), torch.randn(tokens, inputs)
        for panels in (pack(weight), pack_int8(rounded(weight))):
            assert isinstance(panels, Panels)
            whole = panels(x, None)
            assert all(torch.equal(panels(x[row : row + 1], None)[0], whole[row]) for row in range(tokens))
            torch.testing.assert_close(whole, x @ panels.weight.t(), atol=1e-3, rtol=1e-3)


@needs_cpp
def test_eight_bits_are_within_half_a_step_of_the_weight() -> None:
    torch.manual_seed(2)
    weight = torch.randn(70, 50) * torch.logspace(-6, 3, 70)[:, None]
    weight[3] = 0
    step = weight.abs().amax(1, keepdim=True) / 127
    kept = pack_int8(rounded(weight))
    assert ((kept.weight - weight).abs() <= 0.5001 * step).all()
    x, bias, residual = torch.randn(4, 50), torch.randn(70), torch.randn(4, 70)
    expected = x.double() @ kept.weight.double().t() + bias.double()
    # Where large terms cancel, what they were rounded by is much of what is left: a bound that follows from the sizes.
    terms = x.double().abs() @ kept.weight.double().abs().t() + bias.double().abs()
    rounding = 60 * 2.0**-24 * (terms + residual.double().abs())
    assert ((kept(x, bias).double() - expected).abs() <= rounding).all()
    added = kept.add_to(residual.clone(), x, bias).double()
    assert ((added - expected - residual.double()).abs() <= rounding).all()


@needs_cpp
def test_auto_takes_them_on_a_cpu_and_torch_takes_none() -> None:
    taken = choose_kernels(config_of("auto"), CPU)
    assert taken.language == "cpp" and taken[normed] is not normed
    assert taken.report.startswith("cpp: ") and "normed" in taken.report and taken.widens
    none = choose_kernels(config_of("torch"), CPU)
    assert none.language is None and none[normed] is normed and none.report == "none" and not none.widens


@needs_cpp
@pytest.mark.parametrize("head", [str(HOME / "models/demo/head"), "none"], ids=["head", "none"])
def test_with_them_a_checkpoint_in_bf16_is_served_in_bf16_on_any_cpu(
    monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    monkeypatch.setattr(device, "_computes", lambda *_: False)
    served = config_of("auto").model_copy(update={"spec": SpecConfig(head=head)})
    with closing(build_worker(served)) as worker:
        assert worker.capacity.report["dtype"] == "bfloat16"
    torchs = served.engine.model_copy(update={"products": "fp16"})
    with closing(build_worker(served.model_copy(update={"engine": torchs}))) as worker:
        assert worker.capacity.report["dtype"] == "float32", "torch's packed product takes fp32 activations"


def test_a_gpu_s_kernels_and_a_cpu_s_are_not_mixed_up() -> None:
    with pytest.raises(ConfigError, match="cpp, whose kernels are a CPU's, and this deployment runs on a GPU"):
        choose_kernels(config_of("cpp"), torch.device("cuda"))
    with pytest.raises(ConfigError, match="triton, which needs a GPU, and this deployment runs on a CPU"):
        choose_kernels(config_of("triton"), CPU)


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (AttentionShape(4, 2, 64, 16, torch.float16, CPU), "in float32 and bfloat16, and the model in float16"),
        (AttentionShape(4, 2, 40, 16, torch.float32, CPU), "sizes are 16, 32, .*, 256 and the model's is 40"),
        (AttentionShape(4, 2, 512, 16, torch.float32, CPU), "sizes are 16, 32, .*, 256 and the model's is 512"),
        (AttentionShape(4, 2, 64, 16, torch.float32, torch.device("cuda")), "its kernels are a CPU's"),
    ],
)
def test_attention_that_it_cannot_compute_is_refused_by_name(shape: AttentionShape, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"engine.attention is cpp, and .*{why}"):
        make_attention("cpp", shape, CPP)


def test_only_bf16_numbers_are_held_in_16_bits() -> None:
    assert isinstance(pack(torch.randn(40, 8).bfloat16().float()), Panels)
    assert not isinstance(pack(torch.full((40, 8), 0.1)), Panels)
