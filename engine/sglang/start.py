"""Starts SGLang's ModelRunner from a config, in the same order as SGLang's scheduler.

SGLang's settings and process groups are process-wide, so a process holds one runner at a time. SGLang's own pools are
as small as it allows: keys and values go to Aerie's pool.
"""

import os
from functools import wraps
from typing import Any

import torch
from sglang.srt.configs.model_config import ModelConfig as SglangModelConfig
from sglang.srt.distributed import bootstrap, parallel_state
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import ServerArgs

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.engine.memory import GPU_SHARE, Sizes
from aerie.engine.sglang.attention import NAME, PagedAttention, register
from aerie.engine.sglang.place import Place, free_port

_OWN_TOKENS = 4096
"""Tokens in SGLang's own pool, which is unused."""


def start_runner(config: Config, sizes: Sizes, backend: PagedAttention, place: Place) -> Any:
    """Loads the config's model with `backend` as its attention backend."""
    os.environ.setdefault("SGLANG_EAGER_INPUT_NO_COPY", "1")  # else it copies every pass into buffers of fixed size
    register(backend)
    port = place.port or free_port()
    args = _server_args(config, sizes, place)
    args.resolve_once()
    index = _device_index(sizes.device, place)
    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=place.rank, gpu_id=index))
    model = SglangModelConfig.from_server_args(args)
    if not torch.distributed.is_initialized():
        if sizes.device.type == "cpu":
            _speak_gloo()
        bootstrap.init_parallel_runtime(server_args=args, device=sizes.device.type, dist_port=port)
    bootstrap.init_layer_runtime(model_config=model)
    runner = ModelRunner(
        model_config=model,
        mem_fraction_static=config.engine.memory_share or GPU_SHARE,
        gpu_id=index,
        nccl_port=port,
        server_args=args,
    )
    runner.alloc_memory_pool()
    runner.init_attention_backends()
    runner.init_cuda_graphs()
    return runner


def _server_args(config: Config, sizes: Sizes, place: Place) -> ServerArgs:
    """Aerie's settings and `sglang.arguments` as ServerArgs. Raises ConfigError on an argument that is not allowed."""
    own = {
        "model_path": config.model.path,
        "device": sizes.device.type,
        "dtype": str(sizes.dtype).removeprefix("torch."),
        "load_format": "dummy" if config.model.weights == "dummy" else "auto",
        "attention_backend": NAME,
        "sampling_backend": "pytorch",
        "tp_size": place.ranks,
        "page_size": 1,
        "max_total_tokens": _OWN_TOKENS,
        "max_running_requests": sizes.rows,
        "context_length": sizes.max_length,
        "chunked_prefill_size": _OWN_TOKENS,
        "disable_radix_cache": True,
        "disable_overlap_schedule": True,
        "disable_cuda_graph": True,
        "skip_tokenizer_init": True,
        "log_level": "error",
    }
    further = config.sglang.arguments
    for name in further:
        if name in own:
            raise ConfigError(
                f"sglang.arguments.{name} is given, and engine.kind sglang-model decides it: leave it out",
                param=f"sglang.arguments.{name}",
            )
    try:
        return ServerArgs(**own, **further)
    except TypeError as error:
        raise ConfigError(
            f"sglang.arguments has a name that this SGLang does not know: {error}", param="sglang.arguments"
        ) from None


def _device_index(device: torch.device, place: Place) -> int:
    """A rank sees only its own GPU (`place.take`), as index 0. On a CPU the index selects the rank's cores."""
    if device.type == "cuda":
        return 0
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // place.ranks)
    groups = [cores[rank * share % len(cores) :][:share] for rank in range(place.ranks)]
    os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", "|".join(",".join(map(str, group)) for group in groups))
    return place.rank


def _speak_gloo() -> None:
    """Uses only Gloo, on a CPU. Otherwise SGLang also opens NCCL for the ranks' groups if NCCL is installed."""
    make_group = parallel_state.init_model_parallel_group

    @wraps(make_group)
    def make_gloo_group(*args: Any, **given: Any) -> Any:
        return make_group(*args, **(given | {"use_pynccl": False, "use_custom_allreduce": False}))

    parallel_state.init_model_parallel_group = make_gloo_group
