"""A config.json is read as Hugging Face means it, or refused by the name of what this engine does not run."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from aerie.contracts.errors import ConfigError
from aerie.engine.model.config import ModelConfig, read_model_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}


def read(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_model_config(folder)


def test_sizes_and_defaults(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.head_dim, config.kv_heads, config.dtype, config.end_ids) == (16, 2, "bfloat16", (1,))
    assert not (config.attention_bias or config.mlp_bias or config.qk_norm or config.tied_embeddings)


@pytest.mark.parametrize(
    ("changes", "theta", "kind"),
    [
        ({}, 10000.0, "default"),
        ({"rope_theta": 5e5}, 5e5, "default"),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}, 5e5, "linear"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1e6, "default"),
        ({"rope_theta": 7.0, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, 5e5, "llama3"),
    ],
)
def test_both_spellings_of_rope(tmp_path: Path, changes: dict[str, Any], theta: float, kind: str) -> None:
    rope = read(tmp_path, **changes).rope
    assert (rope.theta, rope.kind) == (theta, kind)


def test_end_tokens_of_the_generation_config_count(tmp_path: Path) -> None:
    assert read(tmp_path, generation={"eos_token_id": [1, 7]}).end_ids == (1, 7)
    assert read(tmp_path, generation={"eos_token_id": [299, 300]}).end_ids == (299,), "300 is beyond the vocabulary"


def test_qwen2_has_biases_on_q_k_v_only(tmp_path: Path) -> None:
    config = read(tmp_path, architectures=["Qwen2ForCausalLM"])
    assert config.attention_bias
    assert not config.output_bias


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["DeepseekV3ForCausalLM"]}, "DeepseekV3ForCausalLM"),
        ({"architectures": None}, "none"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 64}, "sliding window of 64"),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64, "use_sliding_window": True}, "sliding window"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_theta": "x"}, "rope_theta 'x'; a finite number of at least 1"),
        ({"rope_theta": -1}, "rope_theta -1; a finite"),
        ({"rope_theta": 0}, "rope_theta 0; a finite"),
        ({"rope_theta": math.nan}, "rope_theta nan; a finite"),
        ({"rope_theta": math.inf}, "rope_theta inf; a finite"),
        ({"rope_theta": True}, "rope_theta True; a finite"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor 0; a finite number of at least 1"),
        (
            {"rope_scaling": {"type": "llama3", "low_freq_factor": 4.0}},
            "high_freq_factor 4.0; one above low_freq_factor 4",
        ),
        ({"rope_scaling": {"original_max_position_embeddings": -5}}, "original_max_position_embeddings -5"),
        ({"rms_norm_eps": 0}, "rms_norm_eps 0; a finite number above 0"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps -1e-05; a finite number above 0"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps nan"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3; a divisor of the 4 attention heads"),
        ({"num_attention_heads": 3, "num_key_value_heads": 1}, "num_attention_heads 3; a divisor of hidden_size 64"),
        ({"num_attention_heads": True}, "num_attention_heads True"),
        ({"head_dim": 15}, "head_dim 15; RoPE turns pairs"),
        ({"rope_scaling": "x"}, "the RoPE scaling 'x'"),
        ({"hidden_act": "gelu"}, "the hidden_act 'gelu'.*silu"),
        ({"hidden_size": None}, "hidden_size None; a whole number of at least 1"),
        ({"num_attention_heads": 0}, "num_attention_heads 0"),
        ({"num_hidden_layers": "8"}, "num_hidden_layers '8'"),
        ({"head_dim": -1}, "head_dim -1"),
        ({"eos_token_id": [1, -1]}, r"eos_token_id \[1, -1\]; a token id"),
        ({"eos_token_id": "x"}, "eos_token_id 'x'"),
    ],
)
def test_what_it_cannot_run_is_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read(tmp_path, **changes)


def test_an_unused_window_is_no_window(tmp_path: Path) -> None:
    read(tmp_path, architectures=["Qwen2ForCausalLM"], sliding_window=64, use_sliding_window=False)


def test_a_folder_without_a_config_or_with_a_broken_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        read_model_config(tmp_path)
