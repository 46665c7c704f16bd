"""The device that a deployment runs on, its free memory and its arithmetic. Queried while a model loads, never in a
step.
"""

from pathlib import Path

import torch

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_AMPERE = (8, 0)
"""The first compute capability with native bfloat16."""


def resolve_device(config: Config) -> torch.device:
    """`auto` is the GPU if there is one. Raises ConfigError if the requested device is not available."""
    wanted = config.engine.device
    if wanted == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if wanted == "cuda":
        if torch.version.cuda is None:
            raise ConfigError(
                f"engine.device is cuda, and this PyTorch ({torch.__version__}) was built for CPUs; install a build "
                f"with CUDA, or set engine.device=cpu",
                param="engine.device",
            )
        if not torch.cuda.is_available():
            raise ConfigError(
                "engine.device is cuda, and no GPU with a working driver was found (nvidia-smi tells more); "
                "set engine.device=cpu to run without one",
                param="engine.device",
            )
        return torch.device("cuda", 0)
    return torch.device("cpu")


def resolve_dtype(config: Config, checkpoint: str, device: torch.device, *, widens: bool = False) -> torch.dtype:
    """The dtype that a deployment computes in; `auto` is the `checkpoint`'s dtype if the device computes it natively or
    its kernels widen bf16.

    With torch's operators, other CPUs emulate 16-bit products, slower than they compute fp32
    (docs/decisions/0004-fp32-on-cpus.md); GPUs older than Ampere compute only float16 natively. Raises ConfigError.
    """
    chosen = config.model.dtype
    name = checkpoint if chosen == "auto" else chosen
    if name not in _DTYPES:
        raise ConfigError(f"dtype {name!r} is none of {', '.join(_DTYPES)}", param="model.dtype")
    dtype = _DTYPES[name]
    widened = widens and dtype is torch.bfloat16
    if dtype is torch.float32 or widened or _computes(device, dtype):
        return dtype
    if chosen == "auto":
        return torch.float16 if device.type == "cuda" else torch.float32
    if device.type == "cuda":
        raise ConfigError(
            f"{torch.cuda.get_device_name(device)} has no units for bfloat16; set model.dtype=float16",
            param="model.dtype",
        )
    return dtype


def free_bytes(device: torch.device) -> int:
    """Bytes that are free on the device now. Raises ConfigError if that cannot be determined."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ConfigError("cannot tell the free memory; set engine.kv_tokens", param="engine.kv_tokens")


def device_name(device: torch.device) -> str:
    """The device's name in reports."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _computes(device: torch.device, dtype: torch.dtype) -> bool:
    if device.type == "cuda":
        return dtype is torch.float16 or torch.cuda.get_device_capability(device) >= _AMPERE
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
