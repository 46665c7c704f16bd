"""The shape of a model that SGLang loads, read from its `config.json`. Rejects what Aerie's attention cannot run, by
name, before anything is loaded.

Aerie runs dense multi-head and grouped-query attention over whole prefixes. SGLang's engine serves other models:
engine.kind=sglang.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aerie.contracts.errors import ConfigError
from aerie.engine.model.config import ModelConfig, Rope, end_ids, read_json
from aerie.engine.model.config_numbers import ConfigNumbers

_LATENT = ("kv_lora_rank",)
_LINEAR = ("linear_num_value_heads", "mamba_d_state", "ssm_state_size", "full_attention_interval", "linear_attn_config")


def read_shape(folder: Path, max_length: int | None = None) -> ModelConfig:
    """Reads the shape; `max_length` decides whether a model with chunked attention may run. Raises ConfigError."""
    data = text_config(folder)
    architecture = (read_json(folder / "config.json").get("architectures") or ["(none)"])[0]
    numbers = ConfigNumbers(data, str(folder / "config.json"), "model.path")
    size = numbers.size
    positions, vocabulary = size("max_position_embeddings"), size("vocab_size")
    found = next(refusals(data, min(max_length or positions, positions)), None)
    if found is not None:
        raise ConfigError(
            f"{folder} holds a {architecture}, which has {found}; engine.kind sglang-model runs dense attention over "
            f"whole prefixes: set engine.kind=sglang to serve it with SGLang's own engine",
            param="engine.kind",
        )
    hidden, heads = size("hidden_size"), size("num_attention_heads")
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden,
        intermediate_size=_inner_width(data),
        layers=size("num_hidden_layers"),
        heads=heads,
        kv_heads=size("num_key_value_heads", heads),
        head_dim=size("head_dim", hidden // heads),
        vocabulary=vocabulary,
        max_positions=positions,
        norm_eps=numbers.number("rms_norm_eps", 1e-6),
        rope=Rope(),  # SGLang's layers rotate queries and keys themselves
        attention_bias=bool(data.get("attention_bias", False)),
        output_bias=False,
        mlp_bias=bool(data.get("mlp_bias", False)),
        qk_norm=False,
        tied_embeddings=bool(data.get("tie_word_embeddings", False)),
        dtype=str(data.get("dtype") or data.get("torch_dtype") or "float32"),
        end_ids=end_ids(folder, data, vocabulary),
    )


def _inner_width(data: dict[str, Any]) -> int:
    """The inner width of a dense layer, or of all experts together; used to plan memory."""
    experts = data.get("num_experts") or data.get("num_local_experts") or data.get("n_routed_experts") or 1
    width = data.get("moe_intermediate_size") or data["intermediate_size"]
    return max(int(data["intermediate_size"]), int(experts) * int(width))


def refusals(data: dict[str, Any], longest: int) -> Iterator[str]:
    """Yields the features of a (text) config that Aerie's attention cannot run for requests of `longest` tokens."""
    kinds = set(data.get("layer_types") or ())
    if any(data.get(key) for key in _LATENT):
        yield "latent attention (MLA)"
    if any(data.get(key) for key in _LINEAR) or kinds & {"linear_attention", "mamba", "recurrent"}:
        yield "linear-attention or state-space layers"
    if data.get("model_type") == "gpt_oss":
        yield "attention sinks and sliding windows"
    if (window := window_of(data)) is not None:
        yield f"a sliding window of {window}"
    chunk = data.get("attention_chunk_size")
    if chunk and longest > chunk:
        yield f"attention in chunks of {chunk}, shorter than model.max_length {longest} (lower that to {chunk})"


def window_of(data: dict[str, Any]) -> int | None:
    """The sliding window of a (text) config, if any of its layers has one."""
    kinds, window = set(data.get("layer_types") or ()), data.get("sliding_window")
    if kinds:
        return int(window or 0) if "sliding_attention" in kinds else None
    return window if window and data.get("use_sliding_window", True) else None


def text_config(folder: Path) -> dict[str, Any]:
    """config.json of a model; that of its text model on top, if it has several."""
    whole = read_json(folder / "config.json")
    return whole | (whole.get("text_config") or {})


def refuse_layers(layers: list[Any]) -> None:
    """Checks the loaded model's attention layers likewise, whatever its config says. Raises ConfigError."""
    for layer in layers:
        oddities = [
            name
            for name, odd in (
                ("a sliding window", layer.sliding_window_size > 0),
                ("capped logits", layer.logit_cap > 0),
                ("cross attention", layer.is_cross_attention),
                ("values of another width", layer.v_head_dim != layer.head_dim),
                ("its own scale", abs(layer.scaling * layer.head_dim**0.5 - 1) > 1e-3),
            )
            if odd
        ]
        if oddities:
            raise ConfigError(
                f"layer {layer.layer_id} of this model attends with {', '.join(oddities)}, which Aerie's attention "
                f"does not run: set engine.kind=sglang to serve it with SGLang's own engine",
                param="engine.kind",
            )
