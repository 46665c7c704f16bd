"""Stand-ins of the models whose attention only SGLang's own engine runs, each with a head of its public format: the
engine loads both behind the front end. Their layers have no CPU path in SGLang, so no request is sent.
"""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.engine.conftest import SIZES, shaken
from tests.sglang.engines import EAGLE3, HOME, Zygote
from tests.sglang.test_layouts import specforge


def gpt_oss() -> Any:
    """As wide inside as outside, like the public ones."""
    rope = {"rope_type": "default", "rope_theta": 1e4}
    sizes = SIZES | {"intermediate_size": SIZES["hidden_size"], "num_local_experts": 4, "num_experts_per_tok": 2}
    config = transformers.GptOssConfig(**sizes, sliding_window=16, rope_parameters=rope)
    return transformers.GptOssForCausalLM(config)


def qwen35() -> Any:
    text = SIZES | {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "full_attention_interval": 2,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "depth": 1,
        "num_heads": 2,
        "out_hidden_size": SIZES["hidden_size"],
    }
    config = transformers.Qwen3_5MoeConfig(text_config=text, vision_config=vision)
    return transformers.Qwen3_5MoeForConditionalGeneration(config)


MODELS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "gpt-oss": (
        gpt_oss,
        (
            "sglang.arguments.attention_backend=intel_amx",
            "sglang.arguments.moe_runner_backend=triton",
            "spec.topk=1",
            "spec.nodes=4",
        ),
    ),
    "Qwen3.5": (qwen35, ("scheduler.prefix_cache=false", "sglang.arguments.enable_multimodal=false")),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_engine_loads_a_layout_with_its_head(name: str, zygote: Zygote, tmp_path: Path) -> None:
    make, settings = MODELS[name]
    torch.manual_seed(0)
    target = tmp_path / "target"
    shaken(make()).save_pretrained(target)
    config = json.loads((target / "config.json").read_text())
    if "text_config" in config:
        config["text_config"]["full_attention_interval"] = 2  # said by the public config, dropped by transformers
        (target / "config.json").write_text(json.dumps(config))
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(HOME / "models/demo/target" / file, target)
    head = specforge(tmp_path / "head")
    with zygote.serve(*EAGLE3, f"spec.head={head}", *settings, target=str(target)) as server:
        server.wait_ready()
        assert str(head) in server.output
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait() == 0
