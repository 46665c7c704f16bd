"""FlashInfer's other ways to verify trees, made for measuring: each equals the reference on a stand-in for the wheel.

The stand-in computes densely from the arrays that it is given. Where the wheel is installed, each of its calls must fit
the wheel's signature too; no CPU can run the kernels.
"""

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from aerie.engine.attention import make_attention
from aerie.engine.attention.flashinfer_options import options
from aerie.engine.attention.inputs import AttentionShape
from tests.engine.attention.attention_cases import HEADS, KV_HEADS, case
from tests.engine.attention.flashinfer_here import INSTALLED

DIM = 64
NAMES = ["stock mask", "prefix, then nodes", "prefix by FA3, then nodes", "a row for each node", "XQA"]


WHEEL = {name: import_module(name) for name in ("flashinfer", "flashinfer.decode") if INSTALLED}


def fits(place: str, *args: Any, **kwargs: Any) -> None:
    """Whether the wheel, where it is installed, has such a call."""
    module, _, name = place.rpartition(":")
    found: Any = WHEEL.get(module)
    if found is not None:
        for part in name.split("."):
            found = getattr(found, part)
        inspect.signature(found).bind(*args, **kwargs)


def attended(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """One row: answers, and logs of the softmax sums in base 2."""
    groups = query.shape[1] // keys.shape[1]
    keys, values = (side.float().repeat_interleave(groups, 1) for side in (keys, values))
    scores = torch.einsum("qhd,khd->qhk", query.float(), keys) / DIM**0.5
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    return torch.einsum("qhk,khd->qhd", scores.softmax(-1), values), scores.logsumexp(-1) / torch.tensor(2.0).log()


class Wrapper:
    kind = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        fits(f"flashinfer:{self.kind}.__init__", None, *args, **kwargs)

    def rows(self, query: Tensor, cache: Any) -> list[tuple[Tensor, Tensor]]:
        raise NotImplementedError

    def run(self, query: Tensor, *cache: Any, return_lse: bool = False) -> Any:
        fits(f"flashinfer:{self.kind}.run", None, query, *cache, return_lse=return_lse)
        answers, sums = zip(*self.rows(query, cache), strict=True)
        return (torch.cat(answers), torch.cat(sums)) if return_lse else torch.cat(answers)


class Paged(Wrapper):
    kind = "BatchPrefillWithPagedKVCacheWrapper"

    def plan(self, qo: Tensor, kv: Tensor, indices: Tensor, last: Tensor, *sizes: Any, **options: Any) -> None:
        fits(f"flashinfer:{self.kind}.plan", None, qo, kv, indices, last, *sizes, **options)
        assert all(part.dtype == torch.int32 for part in (qo, kv, indices, last)) and sizes[:3] == (
            HEADS,
            KV_HEADS,
            DIM,
        )
        self.given = qo.tolist(), kv.tolist(), indices.long(), last.tolist(), sizes[3], options.get("custom_mask")

    def rows(self, query: Tensor, cache: Any) -> list[tuple[Tensor, Tensor]]:
        (keys, values), (qo, kv, indices, last, page, mask) = cache[0], self.given
        found, first = [], 0
        for row, rest in enumerate(last):
            own = indices[kv[row] : kv[row + 1]]
            length = (own.numel() - 1) * page + rest
            both = [side[own].flatten(0, 1)[:length] for side in (keys, values)]
            asked = query[qo[row] : qo[row + 1]]
            seen = torch.ones(asked.shape[0], length, dtype=torch.bool)
            if mask is not None:
                seen = mask[first : first + seen.numel()].view_as(seen)
                first += seen.numel()
            found.append(attended(asked, both[0], both[1], seen))
        return found


class Decode(Paged):
    kind = "BatchDecodeWithPagedKVCacheWrapper"

    def plan(self, kv: Tensor, indices: Tensor, last: Tensor, *sizes: Any, **options: Any) -> None:
        fits(f"flashinfer:{self.kind}.plan", None, kv, indices, last, *sizes, **options)
        self.given = list(range(last.numel() + 1)), kv.tolist(), indices.long(), last.tolist(), sizes[3], None


class Ragged(Wrapper):
    kind = "BatchPrefillWithRaggedKVCacheWrapper"

    def plan(self, qo: Tensor, kv: Tensor, *sizes: Any, **options: Any) -> None:
        fits(f"flashinfer:{self.kind}.plan", None, qo, kv, *sizes, **options)
        assert options["causal"] and torch.equal(qo, kv)
        self.indptr = qo.tolist()

    def rows(self, query: Tensor, cache: Any) -> list[tuple[Tensor, Tensor]]:
        spans = [slice(*ends) for ends in zip(self.indptr, self.indptr[1:], strict=False)]
        seen = [torch.ones(span.stop - span.start, span.stop - span.start).tril().bool() for span in spans]
        return [attended(query[s], cache[0][s], cache[1][s], m) for s, m in zip(spans, seen, strict=True)]


def merge_state(*states: Tensor) -> tuple[Tensor, Tensor]:
    fits("flashinfer:merge_state", *states)
    weights = torch.stack(states[1::2]).mul(torch.tensor(2.0).log()).softmax(0)[..., None]
    return (weights * torch.stack(states[::2])).sum(0), states[1]


def xqa(query: Tensor, cache: Any, workspace: Tensor, tables: Tensor, totals: Tensor, most: int, **options: Any) -> Any:
    fits("flashinfer.decode:xqa_batch_decode_with_kv_cache", query, cache, workspace, tables, totals, most, **options)
    nodes, mask = options["q_len_per_req"], options["mask"]
    assert mask.shape[1:] == (nodes, 2 * -(-nodes // 32)) and most == int(totals.max())
    found = []
    for row, total in enumerate(totals.tolist()):
        both = [side[tables[row].long()].flatten(0, 1)[:total] for side in cache]
        bits = mask[row].view(torch.int16).int() & 0xFFFF
        inner = torch.stack([bits[:, node // 16] >> node % 16 & 1 for node in range(nodes)], 1).bool()
        seen = torch.cat((torch.ones(nodes, total - nodes, dtype=torch.bool), inner), 1)
        found.append(attended(query[row * nodes : (row + 1) * nodes], both[0], both[1], seen)[0])
    return torch.cat(found)


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    flashinfer, decode = ModuleType("flashinfer"), ModuleType("flashinfer.decode")
    for made in (Paged, Ragged, Decode):
        setattr(flashinfer, made.kind, made)
    flashinfer.merge_state = merge_state  # type: ignore[attr-defined]
    decode.xqa_batch_decode_with_kv_cache = xqa  # type: ignore[attr-defined]
    monkeypatch.setattr("aerie.engine.attention.flashinfer_options._WORKSPACE", 16)
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer)
    monkeypatch.setitem(sys.modules, "flashinfer.decode", decode)


@pytest.mark.parametrize("nodes", [1, 7, 40])
@pytest.mark.parametrize("name", NAMES)
def test_every_way_equals_the_reference_on_chains(wheel: None, name: str, nodes: int) -> None:
    inputs, pool = case([130, 1, 47], [nodes] * 3, page=16, tree=True, slack=0, head_dim=DIM)
    chain = torch.tensor([(1 << node + 1) - 1 for node in range(nodes)]).repeat(3)
    inputs.words.copy_(chain)  # type: ignore[union-attr]
    if name == "XQA":  # it reads a table of one width
        inputs, pool = _of_one_width(nodes)
    query = torch.randn(3 * nodes, HEADS, DIM)
    reference = make_attention("reference")
    shape = AttentionShape(HEADS, KV_HEADS, DIM, 16, torch.float32, torch.device("cpu"))
    run = dict(options(shape, inputs, pool))[name]()
    torch.testing.assert_close(run(query), reference.run(reference.plan(inputs), query, pool, 0), atol=1e-5, rtol=1e-4)


def _of_one_width(nodes: int) -> Any:
    inputs, pool = case([130, 129, 131], [nodes] * 3, page=16, tree=True, slack=0, head_dim=DIM)
    assert inputs.words is not None and len(set(inputs.kv_indptr.diff().tolist())) == 1
    inputs.words.copy_(torch.tensor([(1 << node + 1) - 1 for node in range(nodes)]).repeat(3))
    return inputs, pool


def test_the_ways_are_those_that_are_named() -> None:
    inputs, pool = case([5], [2], page=16, tree=True, head_dim=DIM)
    shape = AttentionShape(HEADS, KV_HEADS, DIM, 16, torch.float32, torch.device("cpu"))
    assert [name for name, _ in options(shape, inputs, pool)] == NAMES
