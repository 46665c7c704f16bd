"""A GPU that computes nothing: tensors that know their shape and their device, on a machine without one.

Inside `fake_gpu`, torch makes tensors without memory. An operator that mixes devices raises, and so does asking for a
value, which a stand-in on the host cannot show. Engine and spec run on it as they are, but for the
transfer, whose page-locked memory is numpy's, and for attention, which only looks at where its inputs lie.
"""

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from aerie.engine.attention.inputs import AttentionInputs, FixedPages
from aerie.engine.cuda import Recording
from aerie.engine.model.dummy_weights import DummyWeights
from aerie.engine.state.kv_pool import KVPool
from aerie.engine.state.transfer import Fetch
from tests.engine.stand_in import StandInEvent

GPU = torch.device("cuda", 0)


class FakeRuntime:
    """Implements engine.cuda.Runtime; a capture runs its function, and a replay does nothing."""

    device = GPU

    @contextmanager
    def active(self) -> Iterator[None]:
        yield

    def catch_up(self) -> None: ...

    def release(self) -> None: ...

    def event(self) -> StandInEvent:
        return StandInEvent()

    def pinned(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def capture(self, function: Callable[[], Any]) -> Recording[Any]:
        return Recording(function(), lambda: None)

    def graph_bytes(self) -> int:
        return 0


class FakeTransfer:
    """Implements engine.state.transfer.Transfer. `sent` counts the words that steps answered."""

    device = GPU

    def __init__(self, *_: Any, **__: Any) -> None:
        self.sent: list[int] = []

    def begin(self) -> None: ...

    def put(self, values: Any, kind: Any = np.int64) -> Tensor:
        return torch.empty(values.shape, dtype=getattr(torch, np.dtype(kind).name), device=GPU)

    @contextmanager
    def together(self) -> Iterator[None]:
        yield

    def fetch(self, words: Tensor) -> Fetch:
        assert words.device == GPU and words.dtype == torch.int32
        count = words.numel()
        self.sent.append(count)
        return lambda: np.zeros(count, dtype=np.int32)


class FakeAttention:
    """Its answers are as large as its queries; planned inputs must lie where a backend of a GPU expects them."""

    name = "fake"

    def __init__(self, *_: Any) -> None: ...

    def plan(self, inputs: AttentionInputs) -> AttentionInputs:
        on_host = inputs.qo_indptr, inputs.kv_indptr, inputs.last_page_len
        on_device = inputs.kv_indices, inputs.prefix_lens
        assert all(part.device.type == "cpu" and part.dtype == torch.int32 for part in on_host)
        assert all(part.device == GPU for part in on_device)
        assert (inputs.kv_indices.dtype, inputs.prefix_lens.dtype) == (torch.int32, torch.int64)
        return inputs if inputs.words is None else self.see(inputs, inputs.words)

    def splits(self, rows: int, queries: int) -> bool:
        return False

    def hold(self, inputs: AttentionInputs, pages: FixedPages, *, split: bool) -> AttentionInputs:
        for part in (pages.kv_indptr, pages.last_page_len, pages.kv_indices):
            assert part.device == GPU and part.dtype == torch.int32
        return self.plan(inputs)

    def renew(self, held: AttentionInputs, kv_indptr: Tensor) -> None:
        assert kv_indptr.device.type == "cpu" and kv_indptr.dtype == torch.int32

    def see(self, planned: AttentionInputs, words: Tensor) -> AttentionInputs:
        assert words.device == GPU and words.dtype == torch.int64
        return planned

    def run(self, planned: AttentionInputs, query: Tensor, pool: KVPool, layer: int) -> Tensor:
        assert query.device == GPU
        return torch.empty(query.shape, dtype=query.dtype, device=GPU)


def _unfilled(self: DummyWeights, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(shape, dtype=dtype or self._dtype, device=GPU)


@cache
def _guard() -> None:
    """Brackets ask for a guard of the device, which a build of PyTorch for CPUs lacks. Skips without a compiler."""
    if torch.backends.cuda.is_built():
        return
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler to make a guard for a device that is not there")
    source, home = Path(__file__).with_name("cuda_guard.cpp"), Path(torch.__file__).parent
    flags = ["-shared", "-fPIC", "-std=c++20", "-w", f"-I{home}/include", f"-L{home}/lib"]
    with TemporaryDirectory() as folder:
        built = Path(folder) / "guard.so"
        subprocess.run([compiler, *flags, "-o", built, source, "-lc10"], check=True)
        ctypes.CDLL(str(built))


@contextmanager
def fake_gpu(*, capability: tuple[int, int] = (9, 0), free: int = 16 << 30) -> Iterator[None]:
    """What is built and run inside finds a GPU. Weights must be dummies: files lie on the host."""
    _guard()
    with pytest.MonkeyPatch.context() as patch:
        for name, answer in (
            ("is_available", True),
            ("mem_get_info", (free, free)),
            ("get_device_capability", capability),
            ("get_device_name", "a fake"),
        ):
            patch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
        patch.setattr(torch.version, "cuda", "13.0")
        patch.setattr(FakeTensorMode, "avoid_device_init", True)
        patch.setattr(DummyWeights, "take", _unfilled)  # torch draws no numbers on a device that is not there
        patch.setattr(
            "aerie.spec.heads.vocabulary._check", lambda *_: None
        )  # it looks at values, while a head is loaded
        patch.setattr("aerie.engine.step.state.PinnedTransfer", FakeTransfer)
        for module in ("aerie.engine.build", "aerie.spec.build"):
            patch.setattr(f"{module}.runtime_of", lambda _: FakeRuntime())
        for module in ("aerie.engine.build", "aerie.spec.drafters.head_drafter"):
            patch.setattr(f"{module}.make_attention", FakeAttention)
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
