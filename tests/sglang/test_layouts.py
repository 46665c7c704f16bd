"""Tiny random stand-ins of public models, each with a head in its public layout: SGLang loads the target, Aerie the
head, and drafting changes no token. Models that Aerie's attention does not run are named.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.contracts.sampling import SamplingParams
from aerie.engine.build import read_target
from tests.engine.conftest import LLAMA3_ROPE, SIZES, shaken
from tests.engine.rounds import Rounds
from tests.sglang.forked import run_forked
from tests.sglang.models import Rows, close, load, sglang_config
from tests.spec.models import random_tensors, write

TREE = {"depth": 3, "topk": 2, "nodes": 8}
PROMPT = [3, 9, 14, 2, 33, 8, 5]
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "num_local_experts": 4}


def llama31() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE))


def vicuna() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**(SIZES | {"num_key_value_heads": 4})))


def qwen3() -> Any:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES))


def qwen3_moe() -> Any:
    return transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**SIZES, **{k: v for k, v in EXPERTS.items() if k != "num_local_experts"})
    )


def llama4() -> Any:
    text = SIZES | {
        "intermediate_size_mlp": 128,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "attention_chunk_size": 8192,
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
        "vision_output_dim": 32,
        "projector_input_dim": 32,
        "projector_output_dim": 32,
    }
    marks = {"boi_token_index": 290, "eoi_token_index": 291, "image_token_index": 292}
    return transformers.Llama4ForConditionalGeneration(
        transformers.Llama4Config(text_config=text, vision_config=vision, **marks)
    )


def head_tensors(**extra: tuple[int, ...]) -> dict[str, Tensor]:
    """A random head for targets of SIZES, in canonical names."""
    hidden, inner, wide = SIZES["hidden_size"], 96, SIZES["num_attention_heads"] * SIZES["head_dim"]
    keys = SIZES["num_key_value_heads"] * SIZES["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, 3 * hidden),
        "norm.weight": (hidden,),
        "lm_head.weight": (SIZES["vocab_size"], hidden),
        "layers.0.hidden_norm.weight": (hidden,),
        "layers.0.input_layernorm.weight": (hidden,),
        "layers.0.post_attention_layernorm.weight": (hidden,),
        "layers.0.self_attn.q_proj.weight": (wide, 2 * hidden),
        "layers.0.self_attn.k_proj.weight": (keys, 2 * hidden),
        "layers.0.self_attn.v_proj.weight": (keys, 2 * hidden),
        "layers.0.self_attn.o_proj.weight": (hidden, wide),
        "layers.0.mlp.gate_proj.weight": (inner, hidden),
        "layers.0.mlp.up_proj.weight": (inner, hidden),
        "layers.0.mlp.down_proj.weight": (hidden, inner),
    }
    return random_tensors(shapes | extra, 1, 0.2)


def head_config(**changes: Any) -> dict[str, Any]:
    sizes = {key: value for key, value in SIZES.items() if not key.endswith("token_id")}
    own = {"num_hidden_layers": 1, "intermediate_size": 96, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
    return sizes | own | {"model_type": "llama", "draft_vocab_size": SIZES["vocab_size"]} | changes


def safeailab(folder: Path) -> Path:
    tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in head_tensors().items()}
    return write(folder, head_config(architectures=["LlamaForCausalLM"]), tensors)


def specforge(folder: Path) -> Path:
    taps = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True}
    return write(folder, head_config(architectures=["LlamaForCausalLMEagle3"], eagle_config=taps), head_tensors())


def modelopt(folder: Path) -> Path:
    """No maps, no embedding, switches of its own, and the dense width of Llama 4 under another name."""
    switches = {
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
    }
    return write(folder, head_config(architectures=["LlamaForCausalLMEagle3"], eagle_config=switches), head_tensors())


def yarn(folder: Path) -> Path:
    """As ModelOpt exports heads of long targets: a scaling of RoPE that only SGLang's layers compute."""
    taps = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True}
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4}
    config = head_config(architectures=["LlamaForCausalLMEagle3"], eagle_config=taps, rope_scaling=scaling)
    return write(folder, config, head_tensors())


def speculators(folder: Path) -> Path:
    layer = {key: value for key, value in head_config().items() if key != "draft_vocab_size"}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": SIZES["vocab_size"],
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "transformer_layer_config": layer,
    }
    return write(folder, config, head_tensors())


MODELS: dict[str, tuple[Callable[[], Any], Callable[[Path], Path]]] = {
    "Llama-3.1": (llama31, safeailab),
    "Vicuna-13B": (vicuna, safeailab),
    "Qwen3": (qwen3, speculators),
    "Llama with a head of YaRN": (llama31, yarn),
    "Qwen3-MoE": (qwen3_moe, modelopt),
    "Llama-4-Scout": (llama4, specforge),
}

ONLY_LOADED = {"Llama-4-Scout"}
"""Cannot run here: this release's experts have no CPU path for router weights on their input."""


@pytest.mark.parametrize("name", MODELS)
def test_a_layout_loads_and_drafting_changes_no_token(name: str, tmp_path: Path) -> None:
    make, write_head = MODELS[name]
    torch.manual_seed(0)
    model = shaken(make())
    model.save_pretrained(tmp_path / "target")
    head = write_head(tmp_path / "head")
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([PROMPT])).logits[0]

    def logits() -> None:
        found = Rows(load(tmp_path / "target")).run([0], [0], [PROMPT]).logits
        close(found, expected, 1e-5)

    def texts() -> None:
        from aerie.spec.build import build_worker

        outs = []
        config = sglang_config(tmp_path / "target", spec={"head": str(head), **TREE}, model={"max_length": 128})
        rounds = Rounds(build_worker(config))
        for index, drafting in enumerate((False, True, False, True)):
            sampling = SamplingParams(temperature=0.9 if index > 1 else 0, seed=3, max_tokens=16)
            row = rounds.add(index, PROMPT, sampling, drafting=drafting)
            rounds.finish([row], **(TREE if drafting else {}))
            outs.append(row.out)
        assert len(outs[0]) == 16
        assert outs[0] == outs[1]
        assert outs[2] == outs[3]

    def tables() -> None:
        from aerie.spec.build import build_worker

        config = sglang_config(tmp_path / "target", spec={"head": str(head), **TREE}, model={"max_length": 128})
        report = build_worker(config).capacity.report
        assert report["architecture"] == type(model).__name__
        assert report["head_taps"] == "2, 4, 5"
        assert isinstance(report["target_bytes"], int)
        assert report["target_bytes"] > 4 * sum(tensor.numel() for tensor in model.get_input_embeddings().parameters())

    if name in ONLY_LOADED:
        run_forked(tables)
    else:
        run_forked(logits)
        run_forked(texts)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "gpt-oss": (
        {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "sliding_window": 128},
        "GptOssForCausalLM, which has attention sinks and sliding windows",
    ),
    "Qwen3.5": (
        {
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "text_config": {"layer_types": ["linear_attention", "full_attention"]},
        },
        "Qwen3_5MoeForConditionalGeneration, which has linear-attention",
    ),
    "DeepSeek": ({"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 512}, "latent attention"),
    "Mistral": ({"architectures": ["MistralForCausalLM"], "sliding_window": 64}, "a sliding window of 64"),
    "Llama-4 past its chunk": (
        {"architectures": ["Llama4ForConditionalGeneration"], "text_config": {"attention_chunk_size": 128}},
        "chunks of 128, shorter than model.max_length 256",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_our_attention_does_not_run_are_named(name: str, tmp_path: Path) -> None:
    changes, says = REFUSED[name]
    (tmp_path / "config.json").write_text(json.dumps(SIZES | changes))
    with pytest.raises(ConfigError, match=says) as error:
        read_target(sglang_config(tmp_path))
    assert "engine.kind=sglang" in error.value.message


def test_an_architecture_without_taps_is_named_with_those_that_have_them() -> None:
    def body() -> None:
        from aerie.engine.sglang.taps import require_taps

        for architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "GptOssForCausalLM"):
            require_taps(architecture)
        with pytest.raises(ConfigError, match=r"OlmoForCausalLM gives no taps.*LlamaForCausalLM.*spec\.head=none"):
            require_taps("OlmoForCausalLM")

    run_forked(body)


def test_a_head_of_another_target_is_refused(tmp_path: Path) -> None:
    from aerie.spec.build import build_worker

    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text(
        json.dumps(SIZES | {"architectures": ["LlamaForCausalLM"], "hidden_size": 128})
    )
    config = sglang_config(tmp_path / "target", spec={"head": str(specforge(tmp_path / "head")), **TREE})
    with pytest.raises(ConfigError, match="hidden size 64, the target has 128"):
        build_worker(config)
