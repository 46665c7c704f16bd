"""The contract with SGLang: every name, parameter and attribute of SGLang that the model layer relies on.

Checked against the installed release at load, so that a hook that moved is reported by name instead of failing in a
step. Hooks that only taps need are checked only if a head is served.
"""

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from importlib import import_module
from typing import Any

from aerie.contracts.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Hook:
    """A class, function or method of SGLang."""

    path: str
    """`module:Name` or `module:Class.method`."""
    parameters: tuple[str, ...] = ()
    """Parameters that it must take by name."""
    attributes: tuple[str, ...] = ()
    """Attributes that it must have."""
    fields: tuple[str, ...] = field(default=())
    """Fields that it must have, if it is a dataclass."""


_RUNNER = "sglang.srt.model_executor.model_runner:ModelRunner"
_BATCH = "sglang.srt.model_executor.forward_batch_info"

HOOKS: tuple[Hook, ...] = (
    Hook("sglang.srt.server_args:ServerArgs", attributes=("resolve_once",)),
    Hook("sglang.srt.runtime_context:publish", ("server_args", "role", "ranks")),
    Hook("sglang.srt.runtime_context:get_parallel"),
    Hook("sglang.srt.runtime_context:SpawnRanks", ("world_rank", "gpu_id")),
    Hook("sglang.srt.configs.model_config:ModelConfig.from_server_args", ("server_args",)),
    Hook("sglang.srt.distributed.bootstrap:init_parallel_runtime", ("server_args", "device", "dist_port")),
    Hook("sglang.srt.distributed.bootstrap:init_layer_runtime", ("model_config",)),
    Hook("sglang.srt.distributed.parallel_state:init_model_parallel_group", ("use_pynccl", "use_custom_allreduce")),
    Hook("sglang.srt.distributed.parallel_state:GroupCoordinator", attributes=("broadcast", "all_gather")),
    Hook(_RUNNER, ("model_config", "mem_fraction_static", "gpu_id", "nccl_port", "server_args")),
    Hook(f"{_RUNNER}.alloc_memory_pool"),
    Hook(f"{_RUNNER}.init_attention_backends"),
    Hook(f"{_RUNNER}.init_cuda_graphs"),
    Hook(f"{_RUNNER}.forward", ("forward_batch",)),
    Hook(
        f"{_BATCH}:ForwardBatch",
        fields=(
            "forward_mode",
            "batch_size",
            "input_ids",
            "req_pool_indices",
            "seq_lens",
            "out_cache_loc",
            "seq_lens_sum",
            "positions",
            "capture_hidden_mode",
            "spec_algorithm",
            "extend_num_tokens",
            "extend_seq_lens",
            "extend_prefix_lens",
            "extend_start_loc",
        ),
    ),
    Hook(f"{_BATCH}:ForwardMode", attributes=("EXTEND", "DECODE", "TARGET_VERIFY")),
    Hook(
        "sglang.srt.layers.logits_processor:LogitsProcessorOutput",
        fields=("next_token_logits", "hidden_states"),
    ),
    Hook("sglang.srt.layers.attention.attention_registry:register_attention_backend", ("name",)),
    Hook(
        "sglang.srt.layers.attention.base_attn_backend:AttentionBackend.forward",
        ("q", "k", "v", "layer", "forward_batch", "save_kv_cache"),
    ),
    Hook(
        "sglang.srt.layers.radix_attention:RadixAttention",
        ("num_heads", "head_dim", "scaling", "num_kv_heads", "layer_id", "logit_cap", "v_head_dim"),
    ),
)
TAP_HOOKS: tuple[Hook, ...] = (
    Hook(f"{_BATCH}:CaptureHiddenMode", attributes=("NULL", "FULL")),
    Hook("sglang.srt.models.llama:LlamaForCausalLM.set_eagle3_layers_to_capture", ("layer_ids",)),
    Hook("sglang.srt.models.llama:LlamaForCausalLM.get_embed_and_head"),
    Hook("sglang.srt.models.registry:ModelRegistry", attributes=("models",)),
    Hook("sglang.srt.models.llama_eagle3:LlamaForCausalLMEagle3", ("config",), ("load_weights", "get_hot_token_id")),
    Hook("sglang.srt.model_executor.forward_context:ForwardContext", ("attn_backend",)),
    Hook("sglang.srt.model_executor.forward_context:forward_context", ("ctx",)),
    Hook("sglang.srt.utils.common:reserve_rope_cache_for_long_sequences", ("model", "model_config")),
    Hook("sglang.srt.utils.hf_transformers_utils:get_config", ("model", "trust_remote_code")),
)


def require_hooks(*, taps: bool, hooks: Iterable[Hook] = HOOKS, tap_hooks: Iterable[Hook] = TAP_HOOKS) -> None:
    """Raises a ConfigError that names every hook that moved; `taps` also checks the hooks of a draft head."""
    moved = list(complaints(hooks))
    if moved:
        raise ConfigError(
            f"SGLang is not what Aerie's model layer expects: {'; '.join(moved)}. Set engine.kind=native, or "
            f"engine.kind=sglang for SGLang's own engine",
            param="engine.kind",
        )
    moved = list(complaints(tap_hooks)) if taps else []
    if moved:
        raise ConfigError(
            f"SGLang gives no taps the way Aerie expects: {'; '.join(moved)}. Set spec.head=none to decode plainly",
            param="spec.head",
        )


def complaints(hooks: Iterable[Hook]) -> Iterator[str]:
    """Yields one line for each thing that a hook lacks."""
    for hook in hooks:
        module, _, name = hook.path.partition(":")
        dotted = f"{module}.{name}"
        try:
            found: Any = reduce(getattr, name.split("."), import_module(module))
        except (ImportError, AttributeError):
            yield f"{dotted} is gone"
            continue
        yield from (f"{dotted} has no {part}" for part in hook.attributes if not hasattr(found, part))
        yield from (f"{dotted} has no field {part}" for part in hook.fields if part not in _fields(found))
        if hook.parameters:
            taken = inspect.signature(found).parameters
            yield from (f"{dotted} takes no {part}" for part in hook.parameters if part not in taken)


def _fields(found: Any) -> Iterable[str]:
    return getattr(found, "__dataclass_fields__", ())
