"""How checkpoints store the matrices of their modules. A format of quantized weights is a reader and its line in
FORMATS; past the reader, nothing knows the format.

Called while a model is loaded. A reader takes every tensor that a module's matrix consists of, so that the source can
name those that nobody took.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aerie.contracts.errors import ConfigError
from aerie.engine.model.fp8_blocks import fp8_blocks
from aerie.engine.model.weights import Reader, unquantized

UNQUANTIZED = "none"
FORMATS: Mapping[str, Callable[[Mapping[str, Any]], Reader]] = {
    UNQUANTIZED: lambda _: unquantized,
    "fp8": fp8_blocks,
}
"""By `quant_method`: makes a reader from `quantization_config` of config.json. Raises ConfigError on what it cannot
read.
"""


def reader_of(config: Mapping[str, Any], folder: Path, *, param: str = "model.path") -> Reader:
    """The reader for a checkpoint with this config.json. Raises ConfigError if its format is not served."""
    quantization = config.get("quantization_config") or {}
    method = str(quantization.get("quant_method", "unknown")) if quantization else UNQUANTIZED
    if method not in FORMATS:
        known = ", ".join(sorted(FORMATS.keys() - {UNQUANTIZED})) or "unquantized weights only"
        raise ConfigError(
            f"{folder} is quantized, with quant_method {method!r}; the native engine runs {known}", param=param
        )
    return FORMATS[method](quantization)
