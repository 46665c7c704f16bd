"""Plans the bytes of a deployment's weights, pools and tables before anything is allocated.

Called by `build` and by `spec.build`. On a GPU, memory for the weights and for the steps is reserved first, and an
error about missing memory names the settings that free some.
"""

from dataclasses import dataclass

import torch

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.device import free_bytes, resolve_device, resolve_dtype
from aerie.engine.model.config import ModelConfig
from aerie.engine.state.edit_tables import edit_bytes

GPU_SHARE, CPU_SHARE = 0.9, 0.3
"""Defaults of engine.memory_share. Other programs use a CPU's memory too, and its weights are not counted."""
_STEP_LOGITS = 16
"""fp32 copies of a step's logits that may be alive at once: raw, scaled, the noise's hashes, sorted with indices."""
_GRAPH_BYTES = 1 << 30
"""Reserved on a GPU for CUDA graphs, the attention workspace and the libraries' own buffers."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a deployment's pools and tables."""

    dtype: torch.dtype
    device: torch.device
    max_length: int
    pages: int
    page_size: int
    rows: int
    reserve: int
    edit_slots: int = 0


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """What a draft head adds to them."""

    kv_numbers: int = 0
    """Key and value elements of one token; the head's pool shares the target's page table."""
    bytes: int = 0
    """Bytes of its weights."""
    tail: int = 0
    """Tokens of each row that rests; 0 if rows cannot rest."""
    tap_numbers: int = 0
    """Elements of the taps of one token."""


def plan_sizes(
    config: Config,
    model: ModelConfig,
    *,
    reserve: int = 1,
    head: HeadSizes = HeadSizes(),
    kernels: Kernels = REFERENCES,
) -> Sizes:
    """`reserve`: slots past a row's bound that a step may write. Raises ConfigError if the deployment does not fit."""
    device = resolve_device(config)
    dtype = resolve_dtype(config, model.dtype, device, widens=kernels.widens)
    max_length = config.model.max_length or model.max_positions
    if max_length > model.max_positions:
        raise ConfigError(
            f"model.max_length is {max_length}; the model was made for {model.max_positions} positions",
            param="model.max_length",
        )
    page = config.engine.page_size
    rows = config.scheduler.max_running
    row_pages = -(-(max_length + reserve) // page)
    token_numbers = 2 * model.layers * model.kv_heads * model.head_dim + head.kv_numbers
    page_bytes = token_numbers * dtype.itemsize * page
    room = _kv_room(config, model, head, dtype, device, reserve, needed=(row_pages + 1) * page_bytes)
    if config.engine.kv_tokens is not None:
        pages = -(-config.engine.kv_tokens // page)
        _check_kv_tokens(config.engine.kv_tokens, (pages + 1) * page_bytes, room, device)
    else:
        pages = min(room // page_bytes, rows * row_pages)
    if pages < row_pages:
        raise ConfigError(
            f"the KV pool holds {pages * page} tokens; one request of model.max_length {max_length} needs "
            f"{row_pages * page}: raise engine.kv_tokens or engine.memory_share, or lower model.max_length",
            param="engine.kv_tokens",
        )
    return Sizes(dtype, device, max_length, pages + 1, page, rows, reserve, _edit_slots(config))


def parameter_count(model: ModelConfig) -> int:
    """Elements of a target's matrices; norms and biases are too small to plan for."""
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    layer = 2 * model.hidden_size * (queries + keys) + 3 * model.hidden_size * model.intermediate_size
    tables = 1 if model.tied_embeddings else 2
    return model.layers * layer + tables * model.vocabulary * model.hidden_size


def _kv_room(
    config: Config,
    model: ModelConfig,
    head: HeadSizes,
    dtype: torch.dtype,
    device: torch.device,
    reserve: int,
    *,
    needed: int,
) -> int:
    """Bytes that the pools may take. On a GPU, raises ConfigError if they are fewer than `needed`, the bytes of one
    row.
    """
    free = free_bytes(device)
    if device.type == "cpu":
        return int(free * (config.engine.memory_share or CPU_SHARE))
    weights = parameter_count(model) * dtype.itemsize + head.bytes
    tails = config.scheduler.max_running * head.tail * head.tap_numbers * dtype.itemsize
    step = _step_bytes(config, model, dtype, reserve, head.tail) + tails
    room = int((free - weights - step) * (config.engine.memory_share or GPU_SHARE))
    if room < needed:
        short = weights + step + int(needed / (config.engine.memory_share or GPU_SHARE)) - free
        raise ConfigError(
            f"the GPU has {_gib(free)} free; weights take {_gib(weights)}, steps {_gib(step)} and the KV of one "
            f"request {_gib(needed)}: {_gib(short)} are missing. A 16-bit model.dtype halves the weights of a 32-bit "
            f"one; model.max_length, scheduler.prefill_chunk, scheduler.max_running, spec.nodes and "
            f"spec.resting_tokens shrink the rest",
            param="model.max_length",
        )
    return room


def _check_kv_tokens(tokens: int, needed: int, room: int, device: torch.device) -> None:
    """Raises ConfigError if a pool of `tokens` tokens cannot be allocated; a CPU's pool may exceed its share."""
    if device.type == "cuda":
        if needed > room:
            raise ConfigError(
                f"engine.kv_tokens {tokens} takes {_gib(needed)}, and {_gib(room)} of the GPU's free memory are left "
                f"beside the weights: {_gib(needed - room)} are missing; lower engine.kv_tokens or raise "
                f"engine.memory_share",
                param="engine.kv_tokens",
            )
    elif needed > (free := free_bytes(device)):
        raise ConfigError(
            f"engine.kv_tokens {tokens} takes {_gib(needed)}, and {_gib(free)} of memory are free; lower it",
            param="engine.kv_tokens",
        )


def _step_bytes(config: Config, model: ModelConfig, dtype: torch.dtype, reserve: int, tail: int) -> int:
    """The peak size of a step's own tensors: one layer's activations, and the logits of every node. Before the step,
    the head may take in a tail of every row, which is never recorded.
    """
    nodes = _most_nodes(config) if reserve > 1 else config.scheduler.max_running
    tokens = max(config.scheduler.prefill_chunk, nodes)
    width = 4 * model.hidden_size + 3 * model.intermediate_size
    step = tokens * width * dtype.itemsize + _STEP_LOGITS * 4 * nodes * model.vocabulary
    edits = edit_bytes(_edit_slots(config), model.vocabulary)
    late = config.scheduler.max_running * tail * width * dtype.itemsize
    recorded = step if config.engine.graphs else 0  # recordings have step memory of their own
    return max(step, late) + recorded + edits + _GRAPH_BYTES


def _edit_slots(config: Config) -> int:
    return min(config.engine.edit_slots, config.scheduler.max_running)


def _most_nodes(config: Config) -> int:
    """Nodes of the largest step that the configured shapes can plan."""
    rows, spec = config.scheduler.max_running, config.spec
    if not spec.by_load:
        return rows * spec.nodes
    return max(rows, *(min(rows, load.rows) * load.nodes for load in spec.by_load))


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
