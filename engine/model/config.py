"""The shape of a Llama-family model, read from a Hugging Face `config.json`. What the decoder cannot run is rejected by
name.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aerie.contracts.errors import ConfigError
from aerie.engine.model.config_numbers import ConfigNumbers
from aerie.engine.model.formats import check_format

_FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_ACTIVATIONS = ("silu", "swish")
ROPE_KINDS = ("default", "linear", "llama3")
"""RoPE scalings that Aerie's own layers compute."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: base and scaling. `factor` and the fields after it apply to the scaled kinds only."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and switches of the decoder."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int
    norm_eps: float
    rope: Rope
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied_embeddings: bool
    dtype: str
    end_ids: tuple[int, ...]


def read_model_config(folder: Path) -> ModelConfig:
    """Raises ConfigError if the folder holds no model that the decoder can run."""
    data = read_json(folder / "config.json")
    architecture = (data.get("architectures") or ["(none)"])[0]
    if architecture not in _FAMILIES:
        raise ConfigError(
            f"{folder} holds a {architecture}; the native engine runs {', '.join(sorted(_FAMILIES))}",
            param="model.path",
        )
    check_format(data, folder)
    if data.get("sliding_window") and data.get("use_sliding_window", architecture == "MistralForCausalLM"):
        raise ConfigError(
            f"{folder} attends over a sliding window of {data['sliding_window']}, which the native engine does not run",
            param="model.path",
        )
    activation = data.get("hidden_act") or "silu"
    if activation not in _ACTIVATIONS:
        raise ConfigError(
            f"{folder} has the hidden_act {activation!r}; the native engine runs {', '.join(_ACTIVATIONS)}",
            param="model.path",
        )

    numbers = ConfigNumbers(data, str(folder / "config.json"), "model.path")
    size = numbers.size
    family, vocabulary, hidden = _FAMILIES[architecture], size("vocab_size"), size("hidden_size")
    heads, kv_heads, head_dim = numbers.attention(hidden)
    bias = bool(data.get("attention_bias", False))
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden,
        intermediate_size=size("intermediate_size"),
        layers=size("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=vocabulary,
        max_positions=size("max_position_embeddings"),
        norm_eps=numbers.number("rms_norm_eps", 1e-6),
        rope=read_rope(numbers),
        attention_bias=family == "qwen2" or bias,
        output_bias=family != "qwen2" and bias,
        mlp_bias=bool(data.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        tied_embeddings=bool(data.get("tie_word_embeddings", False)),
        dtype=str(data.get("dtype") or data.get("torch_dtype") or "float32"),
        end_ids=end_ids(folder, data, vocabulary),
    )


def read_rope(config: ConfigNumbers, *, any_kind: bool = False) -> Rope:
    """Reads `rope_parameters` of newer configs, else `rope_scaling` and `rope_theta`. `any_kind`: for layers of other
    engines.
    """
    data, where = config.data, config.where
    scaling = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise ConfigError(f"{where} has the RoPE scaling {scaling!r}; an object is needed", param=config.param)
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if kind not in ROPE_KINDS and not any_kind:
        raise ConfigError(
            f"{where} scales RoPE by {kind!r}; the native engine knows {', '.join(ROPE_KINDS)}", param=config.param
        )
    inner = replace(config, data={"rope_theta": data.get("rope_theta")} | scaling)
    low, high = inner.number("low_freq_factor", 1.0), inner.number("high_freq_factor", 4.0)
    if kind == "llama3" and high <= low:
        raise inner.refused("high_freq_factor", high, f"one above low_freq_factor {low:g} is needed")
    return Rope(
        theta=inner.number("rope_theta", 10000.0, least=1.0),
        kind=kind,
        factor=inner.number("factor", 1.0, least=1.0),
        low_freq_factor=low,
        high_freq_factor=high,
        original_positions=inner.size("original_max_position_embeddings", 8192),
    )


def end_ids(folder: Path, data: dict[str, Any], vocabulary: int) -> tuple[int, ...]:
    """End tokens of `generation_config.json`, which may name more than the model's own config. Ids beyond the
    vocabulary cannot occur and are left out. Raises ConfigError for a value that is not a token id.
    """
    path = folder / "generation_config.json"
    found = (read_json(path) if path.exists() else {}).get("eos_token_id", data.get("eos_token_id"))
    if found is None:
        return ()
    ids = found if isinstance(found, list) else [found]
    if not all(isinstance(one, int) and one >= 0 for one in ids):
        raise ConfigError(f"{folder} has the eos_token_id {found!r}; a token id is needed", param="model.path")
    return tuple(one for one in ids if one < vocabulary)


def read_json(path: Path) -> dict[str, Any]:
    """A config file of a model folder. Raises ConfigError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no {path.name} in {path.parent}; a model folder has one", param="model.path") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}", param="model.path") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold an object", param="model.path")
    return data
