"""Recognizes the format of a draft checkpoint and maps its config and tensor names onto the normal form.

Called by `loader`. Checks tensors before the config, since real checkpoints' `architectures` are unreliable. A format
that Aerie does not serve is rejected by name, never loaded as another one.
"""

import re
from collections.abc import Mapping
from typing import Any

from aerie.contracts.errors import ConfigError
from aerie.engine.model.config import read_rope
from aerie.engine.model.config_numbers import ConfigNumbers
from aerie.spec.checkpoints.speculators import flattened, is_speculators
from aerie.spec.heads.config import HeadConfig, PreNorm, default_boundaries

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of a checkpoint's tensors by normalized name."""

_PREFIX = re.compile(r"^(draft_model\.|eagle_module\.|module\.|model\.)+")
_DROPPED = re.compile(r"(^|\.)(verifier_lm_head|verifier_norm)\.|rotary_emb\.inv_freq$")
_AUX_NORMS = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}
MASK_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")
"""Keys that producers use for the id of the mask token."""


def normalized_name(name: str) -> str | None:
    """The canonical name of a tensor (layers are `layers.{i}.`), or None if it is deliberately dropped."""
    if _DROPPED.search(name):
        return None
    name = _PREFIX.sub("", name)
    if name.startswith("midlayer."):
        name = "layers.0." + name.removeprefix("midlayer.")
    stem, dot, rest = name.partition(".")
    return _AUX_NORMS[stem] + dot + rest if stem in _AUX_NORMS else name


def detect(config: Mapping[str, Any], shapes: Shapes) -> str:
    """`safeailab`, `specforge` (ModelOpt's dense heads share its layout), `speculators`, or `peagle` (vLLM's and
    SpecForge's).

    Raises ConfigError naming any other format.
    """
    foreign = _foreign(config, shapes)
    if foreign is not None:
        raise ConfigError(
            f"the draft checkpoint is {foreign}, which Aerie does not serve yet; "
            f"it serves EAGLE-3 heads in the layouts of SafeAILab, of SpecForge/SGLang and of speculators, and P-EAGLE "
            f"heads in vLLM's",
            param="spec.head",
        )
    if "mask_hidden" in shapes:
        return "peagle"
    if is_speculators(config):
        return "speculators"
    architecture = _architecture(config)
    return "specforge" if architecture.endswith("Eagle3") or "eagle_config" in config else "safeailab"


def _foreign(config: Mapping[str, Any], shapes: Shapes) -> str | None:
    if "mask_hidden" not in shapes and any(
        config.get(key) not in (None, False) for key in (*MASK_KEYS, "parallel_drafting")
    ):
        return "a parallel head without mask_hidden, so no P-EAGLE head (or an incomplete one)"
    if _architecture(config) == "Eagle3DeepseekV2ForCausalLM" or _any(shapes, "q_a_proj", "kv_a_proj_with_mqa"):
        return "an EAGLE-3 head with MLA attention"
    if "medusa_num_heads" in config or _any(shapes, "medusa"):
        return "a set of Medusa heads"
    if "fc.weight" not in shapes:
        return f"no EAGLE-3 head that Aerie knows (it has no fc.weight; architecture {_architecture(config)!r})"
    if not _any(shapes, "hidden_norm"):
        return "an EAGLE-1 or EAGLE-2 head (fc without hidden_norm)"
    if _nested(config, "use_aux_hidden_state", True) is False:
        return "an EAGLE-3 head without taps (use_aux_hidden_state is false)"
    return None


def _any(shapes: Shapes, *parts: str) -> bool:
    return any(part in name for name in shapes for part in parts)


def _architecture(config: Mapping[str, Any]) -> str:
    return next(iter(config.get("architectures") or []), "")


def _nested(config: Mapping[str, Any], key: str, default: Any) -> Any:
    """Producers put switches at the top level or under `eagle_config`."""
    inner = config.get("eagle_config") or {}
    if not isinstance(inner, Mapping):
        raise ConfigError(f"the head's eagle_config is {inner!r}; an object is needed", param="spec.head")
    value = inner.get(key, config.get(key))
    return default if value is None else value


def head_config(config: Mapping[str, Any], shapes: Shapes, *, target_layers: int, any_rope: bool = False) -> HeadConfig:
    """The normal form of a checkpoint's config; `any_rope` accepts RoPE kinds that Aerie's layers do not compute.

    Raises ConfigError on a format, field or RoPE that is not served.
    """
    if is_speculators(config):
        config = flattened(config)
    source = detect(config, shapes)
    numbers = head_numbers(config)
    size, hidden = numbers.size, numbers.size("hidden_size")
    heads, kv_heads, head_dim = numbers.attention(hidden)
    target_hidden = size("target_hidden_size", hidden)
    taps = _taps(config, target_layers, boundaries=source in ("peagle", "speculators"))
    _check_tap_count(config, shapes["fc.weight"], taps, target_hidden)
    vocabulary = size("vocab_size", shapes.get("t2d", (None,))[0])
    drafted = size("draft_vocab_size", vocabulary)
    if drafted > vocabulary:
        raise numbers.refused("draft_vocab_size", drafted, f"at most the target's {vocabulary} ids can be drafted")
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ConfigError(f"the head's hidden_act is {activation!r}; only silu is served", param="spec.head")
    return HeadConfig(
        source=source,
        layers=size("num_hidden_layers", 1),
        hidden=hidden,
        target_hidden=target_hidden,
        taps=taps,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=_intermediate(config),
        eps=numbers.number("rms_norm_eps", 1e-6),
        vocabulary=vocabulary,
        draft_vocabulary=drafted,
        rope=read_rope(numbers, any_kind=any_rope),
        attention_bias="layers.0.self_attn.q_proj.bias" in shapes,
        output_bias="layers.0.self_attn.o_proj.bias" in shapes,
        mlp_bias="layers.0.mlp.gate_proj.bias" in shapes,
        fc_bias="fc.bias" in shapes,
        qk_norm="layers.0.self_attn.q_norm.weight" in shapes,
        pre_norm=_pre_norm(config, shapes),
        norm_before_residual=bool(_nested(config, "norm_before_residual", False)),
        norm_output=bool(_nested(config, "norm_output", False)),
    )


def head_numbers(config: Mapping[str, Any]) -> ConfigNumbers:
    return ConfigNumbers(config, "the head's config.json", "spec.head")


def _intermediate(config: Mapping[str, Any]) -> int:
    """Llama-4 text configs have another key for the dense MLP's width."""
    key = "intermediate_size_mlp" if config.get("model_type") == "llama4_text" else "intermediate_size"
    return head_numbers(config).size(key)


def _taps(config: Mapping[str, Any], target_layers: int, *, boundaries: bool) -> tuple[int, ...]:
    """EAGLE-3's layouts count layer *outputs*, one less than boundaries; without a list, EAGLE-3's defaults apply.

    An id equal to the number of layers cannot be an output, so such a list already counts boundaries
    (nvidia/gpt-oss-120b-Eagle3-v3). So do the top-level lists that vLLM reads: `boundaries`.
    """
    key = "eagle_aux_hidden_state_layer_ids"
    ids = _nested(config, key, None)
    if ids is None:
        return default_boundaries(target_layers)
    if not isinstance(ids, list) or not all(isinstance(layer, int) for layer in ids):
        raise ConfigError(f"the head's {key} is {ids!r}; a list of layers is needed", param="spec.head")
    nested = key in (config.get("eagle_config") or {})
    counted = target_layers in ids or (boundaries and not nested)
    return tuple(ids) if counted else tuple(layer + 1 for layer in ids)


def _check_tap_count(config: Mapping[str, Any], fc: tuple[int, ...], taps: tuple[int, ...], target_hidden: int) -> None:
    declared = config.get("num_aux_hidden_states")
    if declared is not None and declared != len(taps):
        raise ConfigError(
            f"the head declares num_aux_hidden_states {declared} and names {len(taps)} taps", param="spec.head"
        )
    if fc[1] != len(taps) * target_hidden:
        raise ConfigError(
            f"the head's fc.weight takes {fc[1]} values, and {len(taps)} taps of hidden size {target_hidden} "
            f"give {len(taps) * target_hidden}: the tap count or the target's hidden size does not fit",
            param="spec.head",
        )


def _pre_norm(config: Mapping[str, Any], shapes: Shapes) -> PreNorm:
    """Decided by the tensors; a flag that contradicts them would silently leave out a norm."""
    found: PreNorm = "none"
    if "input_norm.weight" in shapes:
        found = "concat"
    if "fc_norm.0.weight" in shapes:
        if found == "concat":
            raise ConfigError("the head has both fc_norm and input_norm; at most one is defined", param="spec.head")
        found = "per_tap"
    for flags, kind, tensor in (
        (("norm_before_fc",), "concat", "input_norm.weight"),
        (("fc_norm", "use_aux_norm"), "per_tap", "fc_norm.0.weight"),
    ):
        if any(_nested(config, flag, False) for flag in flags) and found != kind:
            raise ConfigError(f"the head's config sets {flags[0]}, and {tensor} is missing", param="spec.head")
    return found
