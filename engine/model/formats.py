"""How checkpoints store the matrices of their modules. A format of quantized weights is a reader and its line in
FORMATS; past the reader, nothing knows the format.

Called while a model is loaded. A reader takes every tensor that a module's matrix consists of, so that the source can
name those that nobody took. The server looks at the format, too, and loads no torch: readers import it when they read.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.contracts.errors import ConfigError
from aerie.engine.model.fp8_blocks import fp8_blocks

if TYPE_CHECKING:
    from aerie.engine.model.weights import Reader

UNQUANTIZED = "none"


def _unquantized(_: Mapping[str, Any]) -> "Reader":
    from aerie.engine.model.weights import unquantized

    return unquantized


FORMATS: Mapping[str, "Callable[[Mapping[str, Any]], Reader]"] = {UNQUANTIZED: _unquantized, "fp8": fp8_blocks}
"""By `quant_method`: makes a reader from `quantization_config` of config.json. Raises ConfigError on what it cannot
read.
"""


def check_format(config: Mapping[str, Any], folder: Path) -> None:
    """Raises ConfigError if checkpoints with this config.json are not served."""
    if config.get("quantization_config"):
        reader_of(config, folder)


def reader_of(config: Mapping[str, Any], folder: Path, *, param: str = "model.path") -> "Reader":
    """The reader for a checkpoint with this config.json. Raises ConfigError if its format is not served."""
    return FORMATS[_format_of(config, folder, param)](config.get("quantization_config") or {})


def _format_of(config: Mapping[str, Any], folder: Path, param: str) -> str:
    quantization = config.get("quantization_config") or {}
    method = str(quantization.get("quant_method", "unknown")) if quantization else UNQUANTIZED
    if method not in FORMATS:
        known = ", ".join(sorted(FORMATS.keys() - {UNQUANTIZED})) or "unquantized weights only"
        raise ConfigError(
            f"{folder} is quantized, with quant_method {method!r}; the native engine runs {known}", param=param
        )
    return method
