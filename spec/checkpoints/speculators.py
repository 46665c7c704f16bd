"""Converts the config of a head in the speculators format to the layout of the other formats.

Called by `formats` first. The format has sizes under `transformer_layer_config`, switches at the top level, and tap ids
that are boundaries already. Follows the format and defaults of the vLLM project's speculators library.
"""

from collections.abc import Mapping
from typing import Any

from aerie.contracts.errors import ConfigError

_KINDS = ("eagle3", "peagle")


def is_speculators(config: Mapping[str, Any]) -> bool:
    return "speculators_model_type" in config


def flattened(config: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ConfigError on a speculator of another kind, or if a layer's sizes are missing."""
    kind = config["speculators_model_type"]
    if kind not in _KINDS:
        raise ConfigError(
            f"the draft checkpoint is a speculator of the kind {kind!r} (speculators_model_type), which Aerie does not "
            f"serve; it serves {' and '.join(_KINDS)}",
            param="spec.head",
        )
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise ConfigError(
            "the head is in the speculators format, and its config.json has no transformer_layer_config with its sizes",
            param="spec.head",
        )
    own = {key: value for key, value in config.items() if value is not None and key != "transformer_layer_config"}
    return {"norm_before_residual": kind == "eagle3", **layer, **own}
