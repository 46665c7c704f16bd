"""FP8 weights with a scale for each block, as Qwen3's and DeepSeek's FP8 checkpoints have them.

`weight` is e4m3 [out, in]. `weight_scale_inv` [out / block, in / block], rounded up, multiplies it despite its name.
The weights are multiplied once, while they are loaded, and served in the engine's dtype; activations are never rounded.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aerie.contracts.errors import ConfigError

if TYPE_CHECKING:
    from aerie.engine.model.matrix import Matrix
    from aerie.engine.model.weights import Reader, Source

_SCALES = (None, "float")


def fp8_blocks(settings: Mapping[str, Any]) -> "Reader":
    """`settings`: quantization_config. Raises ConfigError unless the scales are floats of blocks."""
    size, scales = settings.get("weight_block_size"), settings.get("scale_fmt")
    if not (isinstance(size, list) and len(size) == 2 and all(type(n) is int and n > 0 for n in size)):
        raise ConfigError(
            f"quantization_config.weight_block_size is {size!r}; FP8 weights are served with a scale for each block, "
            "such as [128, 128]: choose a checkpoint with blocks, or one without quantization",
            param="model.path",
        )
    if scales not in _SCALES:
        raise ConfigError(
            f"quantization_config.scale_fmt is {scales!r}; FP8 weights are served with scales that are floats: choose "
            "another checkpoint",
            param="model.path",
        )
    rows, columns = size

    def read(source: "Source", module: str, shape: tuple[int, int]) -> "Matrix":
        """Modules without scales are not quantized."""
        import torch

        from aerie.engine.model.weights import unquantized

        if f"{module}.weight_scale_inv" not in source:
            return unquantized(source, module, shape)
        blocks = (-(-shape[0] // rows), -(-shape[1] // columns))
        scales = source.take(f"{module}.weight_scale_inv", blocks, torch.float32)
        weight = source.take(f"{module}.weight", shape)  # exact: e4m3 has fewer bits than any dtype of an engine
        for block, scale in zip(weight.split(rows), scales, strict=True):  # block [rows, in], scale [in / columns]
            spread = scale.repeat_interleave(columns)[: shape[1]]  # [in]
            block.copy_(block.float().mul_(spread))
        return weight

    return read
