"""Attention alone, on random pages: every available backend on the same rows, nodes and lengths. For the GPU probes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.engine.attention import Attention, make_attention
from aerie.engine.attention.inputs import AttentionInputs, AttentionShape
from aerie.engine.device import device_name, free_bytes, resolve_device, resolve_dtype
from aerie.engine.model.config import read_model_config
from aerie.engine.state.kv_pool import KVPool

if TYPE_CHECKING:
    from aerie.engine.attention.flashinfer_options import Run

_NAMES = ("flashinfer", "triton", "cpu", "reference")
_DENSE_MOST = 1 << 22
"""Queries times positions above which `reference` is left out: it materializes its masks and scores."""


class Backends:
    """The backends for a config's target shape and device; `missing` gives the reason for each that cannot be built
    here.
    """

    def __init__(self, config: Config) -> None:
        model = read_model_config(Path(config.model.path))
        self._device = resolve_device(config)
        dtype = resolve_dtype(config, model.dtype, self._device)
        page = config.engine.page_size
        self.shape = AttentionShape(model.heads, model.kv_heads, model.head_dim, page, dtype, self._device)
        self.device_name = device_name(self._device)
        self.made: dict[str, Attention] = {}
        self.missing: dict[str, str] = {}
        self._failed: set[str] = set()
        for name in _NAMES:
            try:
                if name != "cpu" or self._device.type == "cpu":
                    self.made[name] = make_attention(name, self.shape)
            except (ConfigError, ImportError) as error:
                self.missing[name] = str(error)
        if "flashinfer" in self.made:
            from aerie.engine.attention.flashinfer import FlashInferAttention

            self.made["flashinfer, dependent launch"] = FlashInferAttention(self.shape, dependent=True)

    def fits(self, rows: int, length: int) -> bool:
        """Whether the pages of such rows take less than half of the free memory."""
        shape = self.shape
        taken = rows * (length + shape.page_size) * 2 * shape.kv_heads * shape.head_dim * shape.dtype.itemsize
        return 2 * taken < free_bytes(self._device)

    def runs(
        self, rows: int, nodes: int, length: int, *, slow: bool = False
    ) -> Iterator[tuple[str, Callable[[], Tensor] | str]]:
        """Yields a planned call of each backend and each other FlashInfer option, on one layer, or the reason why there
        is none.

        Trees are chains, which cost the same. `slow` yields only options that take minutes to compile.
        """
        if slow and "flashinfer" not in self.made:
            return
        inputs, pool, query = self.case(rows, nodes, length)
        for name, backend in () if slow else self.made.items():
            if name == "reference" and rows * nodes * length > _DENSE_MOST:
                continue
            planned = backend.plan(inputs)
            yield name, lambda backend=backend, planned=planned: backend.run(planned, query, pool, 0)  # type: ignore[misc]
        if "flashinfer" in self.made:
            from aerie.engine.attention.flashinfer_options import SLOW, options

            for name, prepare in options(self.shape, inputs, pool):
                if (name in SLOW) == slow and name not in self._failed:
                    yield name, self._prepared(name, prepare, query)

    def _prepared(self, name: str, prepare: "Callable[[], Run]", query: Tensor) -> Callable[[], Tensor] | str:
        """The option's call, tried once; one that fails is not tried again, since it may have compiled for minutes."""
        try:
            run = prepare()
            run(query)
        except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError, OSError) as error:
            self._failed.add(name)
            return str(error).strip().partition("\n")[0] or type(error).__name__
        return lambda: run(query)

    def case(self, rows: int, nodes: int, length: int) -> tuple[AttentionInputs, KVPool, Tensor]:
        """Rows of `length` tokens and `nodes` nodes each, in shuffled pages, with ancestor words."""
        shape, device = self.shape, self._device
        size = shape.page_size
        pages = -(-(length + nodes) // size)
        generator = torch.Generator(device).manual_seed(rows * nodes + length)
        pool = KVPool(
            layers=1,
            pages=rows * pages + 1,
            page_size=size,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            dtype=shape.dtype,
            device=device,
        )
        for side in (pool.keys, pool.values):
            side.copy_(torch.randn(side.shape, generator=generator, device=device))
        words = torch.tensor([_word(node) for node in range(nodes)], device=device).repeat(rows)
        inputs = AttentionInputs(
            qo_indptr=torch.arange(0, rows * nodes + 1, nodes, dtype=torch.int32),
            kv_indptr=torch.arange(0, rows * pages + 1, pages, dtype=torch.int32),
            kv_indices=(torch.from_numpy(np.random.default_rng(0).permutation(rows * pages)) + 1).int().to(device),
            last_page_len=torch.full((rows,), length + nodes - (pages - 1) * size, dtype=torch.int32),
            prefix_lens=torch.full((rows,), length, device=device),
            words=words,
            page_size=size,
        )
        query = torch.randn(rows * nodes, shape.heads, shape.head_dim, generator=generator, device=device)
        return inputs, pool, query.to(shape.dtype)

    @property
    def device(self) -> torch.device:
        return self._device


def _word(node: int) -> int:
    """The ancestor word of a chain's node: itself and all nodes before it, as a signed 64-bit number."""
    word = (1 << node + 1) - 1
    return word - (1 << 64) if word >> 63 else word
