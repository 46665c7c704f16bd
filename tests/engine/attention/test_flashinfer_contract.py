"""What the installed wheel of FlashInfer promises, held to what Aerie's backend relies on; no GPU runs.

The wheel's own wrapper is driven beside the backend, its compiled module replaced by a recorder: both must call the
module alike. Workspaces are compared with what the real planner asks for.
"""

from typing import Any

import numpy as np
import pytest
import torch

from aerie.engine.attention.flashinfer import FlashInferAttention
from aerie.engine.attention.flashinfer_modules import VERSIONS
from aerie.engine.attention.flashinfer_schedule import Load, room
from aerie.engine.attention.flashinfer_variant import jit_arguments
from aerie.engine.attention.inputs import AttentionShape
from tests.engine.attention import flashinfer_planner
from tests.engine.attention.attention_cases import HEADS, KV_HEADS, case
from tests.engine.attention.flashinfer_emulator import CUSTOM
from tests.engine.attention.flashinfer_here import PROCESSORS, copies, needs_wheel, real_module
from tests.engine.attention.flashinfer_planner import FIELDS

pytestmark = needs_wheel
DIM = 64


class Recorder:
    """A compiled module whose calls are kept; plans are the real planner's, runs do nothing."""

    def __init__(self) -> None:
        self.plans: list[tuple[Any, ...]] = []
        self.runs: list[tuple[Any, ...]] = []

    def plan(self, *arguments: Any) -> Any:
        self.plans.append(arguments)
        return real_module().plan(*arguments)

    def workspace_size(self, *arguments: Any) -> Any:
        return real_module().workspace_size(*arguments)

    def paged_run(self, *arguments: Any) -> None:
        self.runs.append(arguments)

    def ragged_run(self, *arguments: Any) -> None:
        raise AssertionError("ragged batches are not used")


def test_the_version_is_one_that_was_looked_at() -> None:
    import flashinfer

    assert flashinfer.__version__.partition(".post")[0] in VERSIONS


def test_mask_modes_and_layout_are_the_wheel_s() -> None:
    from flashinfer.utils import MaskMode, TensorLayout

    assert (MaskMode.CAUSAL.value, MaskMode.CUSTOM.value, TensorLayout.NHD.value) == (1, 2, 0)


def wrapper_calls(monkeypatch: pytest.MonkeyPatch, inputs: Any, query: torch.Tensor, pool: Any) -> Recorder:
    """The wheel's wrapper plans and runs Aerie's variant."""
    import flashinfer

    recorder, empty = Recorder(), torch.empty

    def unpinned(*sizes: Any, **options: Any) -> torch.Tensor:
        options.pop("pin_memory", None)
        return empty(*sizes, **options)

    monkeypatch.setattr(torch, "empty", unpinned)
    monkeypatch.setattr("flashinfer.prefill.get_customize_batch_prefill_module", lambda *_, **__: recorder)
    owns = {"variant_owns_mask": True} if flashinfer.__version__.startswith("0.7") else {}
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
        torch.zeros(64 << 20, dtype=torch.uint8),
        "NHD",
        backend="fa2",
        jit_args=list(jit_arguments(torch.bfloat16, DIM)),
        **owns,
    )
    wrapper.plan(
        inputs.qo_indptr,
        inputs.kv_indptr,
        inputs.kv_indices,
        inputs.last_page_len,
        HEADS,
        KV_HEADS,
        DIM,
        inputs.page_size,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
    )
    if not owns:
        wrapper._custom_mask_buf = torch.zeros(1, dtype=torch.uint8)
    out = torch.empty_like(query)
    wrapper.run(query, pool.paged(1), inputs.words, inputs.prefix_lens, DIM**-0.5, 0, out=out, enable_pdl=False)
    return recorder


def alike(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, torch.Tensor):
        return ours.dtype == theirs.dtype and ours.stride() == theirs.stride() and torch.equal(ours, theirs)
    return bool(ours == theirs) and type(ours) is type(theirs)


def test_the_backend_calls_the_module_as_the_wheel_s_wrapper_does(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, pool = case([300, 0, 31], [4, 9, 1], page=16, tree=True, head_dim=DIM, dtype=torch.bfloat16)
    query = torch.randn(14, HEADS, DIM).bfloat16()
    theirs = wrapper_calls(monkeypatch, inputs, query, pool)
    recorder = Recorder()
    shape = AttentionShape(HEADS, KV_HEADS, DIM, 16, torch.bfloat16, torch.device("cpu"))
    attention = FlashInferAttention(shape, module=recorder, processors=PROCESSORS)
    attention.run(attention.plan(inputs), query, pool, 1)

    assert len(recorder.plans[0]) == len(theirs.plans[0]) == 20
    differing = [
        place for place, pair in enumerate(zip(recorder.plans[0], theirs.plans[0], strict=True)) if not alike(*pair)
    ]
    assert set(differing) <= {0, 1, 2}, "beside the three workspaces"
    ours, wheel = recorder.runs[0], theirs.runs[0]
    assert len(ours) == len(wheel) == 20
    differing = [place for place, pair in enumerate(zip(ours, wheel, strict=True)) if not alike(*pair)]
    assert set(differing) <= {0, 1, 2, 10}, "beside workspaces, the planner's numbers and the output"
    assert list(ours[2]) == list(wheel[2]) and ours[12] == CUSTOM
    assert ours[10].shape == wheel[10].shape


LOADS = [([1] * rows, length, graph) for rows in (1, 8, 64) for length in (1, 127, 8192) for graph in (False, True)] + [
    ([16] * 8, 4096, True),
    ([64] * 32, 500, True),
    ([1, 64, 7, 30], 2000, True),
    ([1, 64, 7, 30], 2000, False),
    ([2048], 2048, False),
    ([300] * 9, 300, False),
]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (4, 2, 64), (28, 4, 128), (8, 8, 256)])
@pytest.mark.parametrize("page", [1, 16])
def test_calculated_room_is_what_the_planner_asks_for(heads: int, kv_heads: int, head_dim: int, page: int) -> None:
    shape = AttentionShape(heads, kv_heads, head_dim, page, torch.bfloat16, torch.device("cpu"))
    nothing = torch.empty(0, dtype=torch.uint8)
    for counts, length, graph in LOADS:
        pages = np.full(len(counts), -(-(length + max(counts)) // page))
        qo = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
        kv = torch.tensor([0, *np.cumsum(pages)], dtype=torch.int32)
        uniform = counts[0] if graph and len(set(counts)) == 1 else 0
        load = Load(len(counts), sum(counts), uniform, graph)
        asked = real_module().workspace_size(
            nothing, qo, kv, torch.from_numpy(pages.astype(np.int32)), load.queries, load.rows, heads, kv_heads,
            page, graph, head_dim, head_dim, False, -1, -1, False, 0, uniform,
        )  # fmt: skip
        floats, integers = (int(value) for value in asked)
        given = room(load, shape, PROCESSORS)
        assert floats <= given.scratch, (counts, length, graph)
        assert integers <= given.schedule, (counts, length, graph)
        assert given.schedule <= 4 * integers + 16384, "not many times what is needed"


@pytest.mark.parametrize("graph", [False, True])
def test_the_planner_in_python_is_the_real_one(graph: bool) -> None:
    """The stand-in of machines without the wheel: the pinned release's numbers, but for where partial results lie."""
    import flashinfer

    if not flashinfer.__version__.startswith(VERSIONS[0]):
        pytest.skip(f"the stand-in restates the planner of {VERSIONS[0]}")
    for counts, length, page in (([1] * 8, 4096, 16), ([5, 64, 1], 700, 1), ([16] * 4, 100, 16), ([33], 8192, 1)):
        pages = np.full(len(counts), -(-(length + max(counts)) // page))
        arguments = (
            torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32),
            torch.tensor([0, *np.cumsum(pages)], dtype=torch.int32),
            torch.from_numpy(pages.astype(np.int32)),
            sum(counts), len(counts), 32, 8, page, graph, 128, 128, False, -1, -1, False, 0,
            counts[0] if graph and len(set(counts)) == 1 else 0,
        )  # fmt: skip
        answers = []
        for plan in (real_module().plan, flashinfer_planner.plan):
            memory = [torch.zeros(size, dtype=torch.uint8) for size in (256 << 20, 1 << 20, 1 << 20)]
            info = dict(zip(FIELDS, map(int, plan(*memory, *arguments)), strict=True))
            blocks = info["padded_batch_size"]
            starts = [info[f"{name}_offset"] for name in ("request_indices", "qo_tile_indices", "kv_tile_indices")]
            parts = [memory[1][start : start + 4 * blocks].tolist() for start in starts]
            compared = {name: value for name, value in info.items() if name not in ("v_offset", "s_offset")}
            answers.append((compared, parts))
        assert answers[0] == answers[1]


def test_the_shim_stands_in_for_the_copy_to_the_device() -> None:
    before = copies()
    recorder = Recorder()
    shape = AttentionShape(HEADS, KV_HEADS, DIM, 16, torch.bfloat16, torch.device("cpu"))
    attention = FlashInferAttention(shape, module=recorder, processors=PROCESSORS)
    inputs, _ = case([300], [4], page=16, tree=True, head_dim=DIM, dtype=torch.bfloat16)
    for _ in range(3):
        attention.plan(inputs)
    assert copies() == before + 3
