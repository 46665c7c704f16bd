"""From a config to a loaded target, its pool and the capacity that the scheduler plans with."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from contracts.config import Config
from contracts.errors import ConfigError
from contracts.step import Capacity
from engine.attention import make_attention
from engine.decoder import Decoder
from engine.kv_pool import KVPool
from engine.model_config import ModelConfig, read_model_config
from engine.plain_worker import PlainWorker
from engine.state import make_state
from engine.weights import Weights

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a deployment's pools and tables come to, before anything is allocated."""

    dtype: torch.dtype
    max_length: int
    pages: int
    page_size: int
    rows: int
    reserve: int


def plan_sizes(config: Config, model: ModelConfig, *, reserve: int = 1, head_layers: int = 0) -> Sizes:
    """`reserve`: slots past a row's bound that a step may write; `head_layers`: KV layers that share the page table."""
    dtype = resolve_dtype(config, model)
    max_length = config.model.max_length or model.max_positions
    if max_length > model.max_positions:
        raise ConfigError(
            f"model.max_length is {max_length}; the model was made for {model.max_positions} positions",
            param="model.max_length",
        )
    page = config.engine.page_size
    rows = config.scheduler.max_running
    row_pages = -(-(max_length + reserve) // page)
    token_bytes = 2 * (model.layers + head_layers) * model.kv_heads * model.head_dim * dtype.itemsize
    if config.engine.kv_tokens is not None:
        pages = -(-config.engine.kv_tokens // page)
    else:
        pages = min(int(_free_bytes() * config.engine.memory_share) // (token_bytes * page), rows * row_pages)
    if pages < row_pages:
        raise ConfigError(
            f"the KV pool holds {pages * page} tokens; one request of model.max_length {max_length} needs "
            f"{row_pages * page}: raise engine.kv_tokens or engine.memory_share, or lower model.max_length",
            param="engine.kv_tokens",
        )
    return Sizes(dtype, max_length, pages + 1, page, rows, reserve)


def resolve_dtype(config: Config, model: ModelConfig) -> torch.dtype:
    """The arithmetic of a deployment. `auto` is the checkpoint's own where the machine has units for it.

    A CPU without them emulates 16-bit products, slower than it computes fp32 (docs/decisions/0004-fp32-on-cpus.md).
    """
    name = model.dtype if config.model.dtype == "auto" else config.model.dtype
    if name not in _DTYPES:
        raise ConfigError(f"dtype {name!r} is none of {', '.join(_DTYPES)}", param="model.dtype")
    if config.model.dtype == "auto" and _DTYPES[name] != torch.float32 and not _has_half_units():
        return torch.float32
    return _DTYPES[name]


def _has_half_units() -> bool:
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def load_target(config: Config, model: ModelConfig, sizes: Sizes, boundaries: tuple[int, ...] = ()) -> Decoder:
    """The native decoder with its pool, on the CPU."""
    pool = KVPool(
        layers=model.layers,
        pages=sizes.pages,
        page_size=sizes.page_size,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        dtype=sizes.dtype,
    )
    weights = Weights(Path(config.model.path), sizes.dtype)
    positions = sizes.max_length + sizes.reserve + 1
    attention = make_attention(config.engine.attention)
    return Decoder(model, weights, pool, attention, positions=positions, boundaries=boundaries)


def make_capacity(
    target: Decoder,
    sizes: Sizes,
    *,
    drafts: bool = False,
    extra: dict[str, str | int | float | bool | None] | None = None,
) -> Capacity:
    model = target.config
    report: dict[str, str | int | float | bool | None] = {
        "architecture": model.architecture,
        "dtype": str(sizes.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "target_bytes": target.bytes,
        "kv_bytes": target.pool.bytes,
        "kv_tokens": (sizes.pages - 1) * sizes.page_size,
        "max_length": sizes.max_length,
        **(extra or {}),
    }
    return Capacity(
        rows=sizes.rows,
        pages=sizes.pages,
        page_size=sizes.page_size,
        max_length=sizes.max_length,
        vocabulary=model.vocabulary,
        end_ids=model.end_ids,
        drafts=drafts,
        reserve=sizes.reserve,
        report=report,
    )


def build_plain_worker(config: Config) -> PlainWorker:
    """A worker without a head."""
    model = read_model_config(Path(config.model.path))
    sizes = plan_sizes(config, model)
    target = load_target(config, model, sizes)
    return PlainWorker(make_state(target, make_capacity(target, sizes), poison=config.scheduler.poison))


def lane_threads(config: Config) -> int:
    """Real cores - 1, at least 1: the scheduler needs one, and more threads than free cores stall each other."""
    return config.engine.threads or max(1, len(os.sched_getaffinity(0)) - 1)


def _free_bytes() -> int:
    """Bytes that the kernel would give, by /proc/meminfo."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ConfigError("cannot tell the free memory; set engine.kv_tokens", param="engine.kv_tokens")
