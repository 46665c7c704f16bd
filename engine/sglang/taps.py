"""The models of SGLang that provide taps: those with `set_eagle3_layers_to_capture`.

Checked before a target with a head is loaded. The list comes from the installed release; it is not kept by hand.
"""

from aerie.contracts.errors import ConfigError


def require_taps(architecture: str) -> None:
    """Raises a ConfigError that lists the architectures with taps if `architecture` has none."""
    tapped = tapped_architectures()
    if architecture not in tapped:
        raise ConfigError(
            f"SGLang's {architecture} gives no taps for an EAGLE-3 head; those that do: {', '.join(tapped)}. Set "
            f"spec.head=none to decode plainly",
            param="spec.head",
        )


def tapped_architectures() -> list[str]:
    from sglang.srt.models.registry import ModelRegistry

    return sorted(
        name for name, model in ModelRegistry.models.items() if hasattr(model, "set_eagle3_layers_to_capture")
    )
