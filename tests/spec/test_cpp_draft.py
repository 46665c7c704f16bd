"""Drafting in one C++ call: the guesses of the levels one by one, or the call is not made."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.attention import make_attention
from engine.attention.inputs import AttentionShape
from engine.batch import cover
from engine.choose import Needs
from engine.kernels.switch import take_kernels
from engine.kv_pool import KVPool
from engine.model_config import Rope
from engine.norm import RmsNorm
from engine.stack import Stack
from engine.transfer import HostTransfer
from spec import draft as twins
from spec.confidence import Confidence
from spec.cpp.head import held_head
from spec.draft import Growth, Roots, draft_chain, draft_tree
from spec.head import Head, HeadWeights
from spec.head_config import HeadConfig
from spec.ranking import Ranking, ranking, step_noise
from tests.cpp_here import needs_cpp
from tests.engine.attention_cases import HEADS, KV_HEADS
from tests.engine.stacks import HIDDEN, INNER, layer, projection
from tests.spec.scene import PAGE, make_tables

pytestmark = needs_cpp
CPU = torch.device("cpu")
DIM, VOCABULARY, DRAFTED, POSITIONS = 16, 90, 70, 128
LENGTHS = [5, 17, 30]


@pytest.fixture(autouse=True)
def kernels() -> None:
    take_kernels("cpp", CPU)


def make_head(dtype: torch.dtype, *, mapped: bool, norm_output: bool) -> Head:
    """The same at every call, on an own pool."""
    torch.manual_seed(11)
    plain: dict[str, Any] = {"biased": False, "rounds": False}
    config = HeadConfig(
        source="test",
        layers=1,
        hidden=HIDDEN,
        target_hidden=HIDDEN,
        taps=(1, 2, 3),
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        intermediate=INNER,
        eps=1e-5,
        vocabulary=VOCABULARY,
        draft_vocabulary=DRAFTED,
        rope=Rope(theta=10000.0),
        norm_output=norm_output,
    )
    weights = HeadWeights(
        fc=projection(HIDDEN, 3 * HIDDEN, dtype, **plain),
        pre_norms=(),
        stack=Stack((layer(DIM, dtype, beside=True),), normed_residual=norm_output),
        norm=RmsNorm(torch.randn(HIDDEN), 1e-5),
        output=projection(DRAFTED, HIDDEN, dtype, biased=False, rounds=True),
        embeddings=torch.randn(VOCABULARY, HIDDEN).to(dtype),
        draft_to_target=torch.randperm(VOCABULARY)[:DRAFTED] if mapped else None,
        mask_hidden=None,
        own_output=True,
        own_embeddings=False,
    )
    pool = KVPool(layers=1, pages=50, page_size=PAGE, kv_heads=KV_HEADS, head_dim=DIM, dtype=dtype)
    pool.keys.copy_(torch.randn(pool.keys.shape))
    pool.values.copy_(torch.randn(pool.values.shape))
    attention = make_attention("cpp", AttentionShape(HEADS, KV_HEADS, DIM, PAGE, dtype, CPU))
    return Head(config, weights, pool, attention, positions=POSITIONS)


def roots(dtype: torch.dtype) -> Roots:
    torch.manual_seed(12)
    return Roots(
        owners=torch.arange(3),
        lengths=torch.tensor(LENGTHS),
        tokens=torch.tensor([3, 80, 41]),
        seeds=torch.randn(3, HIDDEN).to(dtype),
        covered=cover(np.array([length + 32 for length in LENGTHS], np.int32), PAGE, HostTransfer()),
    )


def ranked(temperatures: tuple[float, ...], sharpness: float, head: Head) -> Ranking:
    tables, rows = make_tables(temperatures), torch.arange(3)
    sampled = any(temperatures)
    noise = step_noise(tables, rows, torch.tensor(LENGTHS), 6, VOCABULARY) if sampled else None
    needs = Needs(noise=sampled, filters=False, bans=False)
    return ranking(tables, rows, needs, noise=noise, mapping=head.weights.draft_to_target, sharpness=sharpness)


def only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call itself must answer from here on."""
    for name in ("draft_chain", "draft_tree"):
        monkeypatch.setattr(twins, name, None)


@pytest.mark.parametrize("temperatures", [(0.0, 0.0, 0.0), (0.8, 0.0, 1.2)])
@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.999])
@pytest.mark.parametrize(("mapped", "norm_output"), [(True, False), (False, True)])
@torch.inference_mode()
def test_the_same_chain(
    monkeypatch: pytest.MonkeyPatch,
    mapped: bool,
    norm_output: bool,
    threshold: float,
    temperatures: tuple[float, ...],
) -> None:
    def asked(head: Head) -> tuple[Any, ...]:
        doubt = Confidence(math.log(threshold), torch.zeros(3)) if threshold else None
        growth = Growth(6, 1, torch.tensor([7, 7, 7]), 7, (), doubt)
        return head, make_tables(temperatures), roots(torch.float32), growth, ranked(temperatures, math.inf, head)

    heads = [make_head(torch.float32, mapped=mapped, norm_output=norm_output) for _ in range(2)]
    expected = draft_chain.twin(*asked(heads[0]))
    only(monkeypatch)
    found = draft_chain.kernel("cpp")(*asked(heads[1]))
    assert expected.shape[1] == (2 if threshold == 0.999 else 7 if threshold == 0 else expected.shape[1])
    assert torch.equal(found, expected)
    torch.testing.assert_close(heads[0].pool.keys, heads[1].pool.keys, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(heads[0].pool.values, heads[1].pool.values, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("temperatures", [(0.0, 0.0, 0.0), (0.8, 0.0, 1.2)])
@pytest.mark.parametrize(("depth", "topk"), [(1, 3), (4, 3), (3, 8)])
@pytest.mark.parametrize("mapped", [True, False])
@torch.inference_mode()
def test_the_same_candidates(
    monkeypatch: pytest.MonkeyPatch, mapped: bool, depth: int, topk: int, temperatures: tuple[float, ...]
) -> None:
    growth = Growth(depth, topk, torch.tensor([9, 9, 9]), 9, (1.0, 0.7))
    heads = [make_head(torch.float32, mapped=mapped, norm_output=False) for _ in range(2)]
    tables, start = make_tables(temperatures), roots(torch.float32)
    expected = draft_tree.twin(heads[0], tables, start, growth, ranked(temperatures, math.inf, heads[0]))
    only(monkeypatch)
    found = draft_tree.kernel("cpp")(heads[1], tables, start, growth, ranked(temperatures, math.inf, heads[1]))
    assert found.deepest == expected.deepest
    for name in ("tokens", "parents", "depths"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    torch.testing.assert_close(found.scores, expected.scores, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(heads[0].pool.keys, heads[1].pool.keys, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_of_bf16_nearly_the_same_chain() -> None:
    """Rounded in other places: a guess may differ, and most do not."""
    heads = [make_head(torch.bfloat16, mapped=True, norm_output=False) for _ in range(2)]
    growth = Growth(6, 1, torch.tensor([7, 7, 7]), 7)
    given = (make_tables((0.0,) * 3), roots(torch.bfloat16), growth)
    rank = ranked((0.0,) * 3, math.inf, heads[0])
    same = draft_chain.twin(heads[0], *given, rank) == draft_chain.kernel("cpp")(heads[1], *given, rank)
    assert same[:, :2].all() and same.float().mean() > 0.6


@pytest.mark.parametrize("why", ["noise", "filters", "many"])
@torch.inference_mode()
def test_what_the_call_cannot_do_goes_level_by_level(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    head = make_head(torch.float32, mapped=True, norm_output=False)
    rank = ranked((0.8, 0.0, 1.2) if why == "noise" else (0.0,) * 3, 1.5, head)
    if why == "filters":
        rank = Ranking(None, torch.ones(3, 1), torch.ones(3, 1), (torch.zeros(3),) * 3)
    if why == "many":
        held = held_head(head)
        head.held = replace(held, body=replace(held.body, most=2))
    called = []
    draft, topk = (draft_tree, 2) if why == "filters" else (draft_chain, 1)  # chains ask for what is likeliest alone
    monkeypatch.setattr(draft, "twin", lambda *given: called.append(given))
    growth = Growth(2, topk, torch.ones(3), 3)
    draft.kernel("cpp")(head, make_tables((0.0,) * 3), roots(torch.float32), growth, rank)
    assert len(called) == 1


@torch.inference_mode()
def test_a_chain_does_not_depend_on_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = [make_head(torch.float32, mapped=True, norm_output=False) for _ in range(2)]
    filters = torch.tensor([0.1, 0.0, 0.0]), torch.tensor([0, 2, 0]), torch.tensor([1.0, 1.0, 0.5])
    rank = Ranking(None, torch.ones(3, 1), torch.tensor([[0.7], [1.3], [1.0]]), filters)
    growth = Growth(4, 1, torch.tensor([5, 5, 5]), 5)
    given = (make_tables((0.7, 1.3, 1.0)), roots(torch.float32), growth, rank)
    expected = draft_chain.twin(heads[0], *given)
    only(monkeypatch)
    assert torch.equal(draft_chain.kernel("cpp")(heads[1], *given), expected)
