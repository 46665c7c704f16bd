"""What a deployment's settings become for SGLang's engine, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from aerie.bridge import arguments
from aerie.bridge.arguments import drafts, server_arguments, unused_settings
from aerie.contracts.config import Config, known_keys, load_config
from aerie.contracts.errors import ConfigError


def config_of(*settings: str) -> Config:
    return load_config(None, ["engine.kind=sglang", "model.path=m", *settings])


def arguments_of(*settings: str) -> dict[str, Any]:
    return server_arguments(config_of(*settings), grammars=False)


def test_what_is_not_said_is_left_to_sglang() -> None:
    assert arguments_of("spec.head=none") == {
        "model_path": "m",
        "max_running_requests": 64,
        "log_level": "warning",
        "skip_tokenizer_init": True,
        "stream_interval": 1,
        "incremental_streaming_output": False,
        "tp_size": 1,
        "pp_size": 1,
        "dp_size": 1,
        "ep_size": 1,
        "nnodes": 1,
        "node_rank": 0,
    }


def test_grammars_need_a_tokenizer_and_our_backend() -> None:
    given = server_arguments(config_of("spec.head=none"), grammars=True)
    assert given == arguments_of("spec.head=none") | {"skip_tokenizer_init": False, "grammar_backend": "aerie"}


@pytest.mark.parametrize(
    ("setting", "argument", "value"),
    [
        ("model.dtype=bfloat16", "dtype", "bfloat16"),
        ("model.max_length=4096", "context_length", 4096),
        ("model.weights=dummy", "load_format", "dummy"),
        ("engine.device=cuda", "device", "cuda"),
        ("engine.attention=flashinfer", "attention_backend", "flashinfer"),
        ("engine.page_size=32", "page_size", 32),
        ("engine.kv_tokens=65536", "max_total_tokens", 65536),
        ("engine.graphs=false", "disable_cuda_graph", True),
        ("scheduler.overlap=false", "disable_overlap_schedule", True),
        ("scheduler.prefix_cache=true", "disable_radix_cache", False),
        ("scheduler.prefill_chunk=2048", "chunked_prefill_size", 2048),
        ("sglang.tp=4", "tp_size", 4),
        ("sglang.dp=2", "dp_size", 2),
        ("sglang.ep=4", "ep_size", 4),
        ("sglang.memory=0.85", "mem_fraction_static", 0.85),
        ("sglang.arguments.schedule_policy=fcfs", "schedule_policy", "fcfs"),
        ("sglang.arguments.attention_backend=fa3", "attention_backend", "fa3"),
    ],
)
def test_a_setting_that_is_said_is_passed_on(setting: str, argument: str, value: Any) -> None:
    assert argument not in arguments_of() or arguments_of()[argument] != value
    assert arguments_of(setting)[argument] == value


def test_the_cap_of_running_requests_is_always_ours() -> None:
    """SGLang sets 48 in silence where a head drafts and nothing is said."""
    assert arguments_of("spec.head=h")["max_running_requests"] == 64
    assert arguments_of("spec.head=h", "scheduler.max_running=200")["max_running_requests"] == 200


def test_a_head_and_its_shape() -> None:
    given = arguments_of("spec.head=h", "spec.depth=3", "spec.topk=4", "spec.nodes=16")
    assert {key: value for key, value in given.items() if key.startswith("speculative")} == {
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": "h",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 4,
        "speculative_num_draft_tokens": 16,
    }


def test_dummy_weights_are_the_heads_too() -> None:
    given = arguments_of("spec.head=h", "model.weights=dummy")
    assert given["load_format"] == given["speculative_draft_load_format"] == "dummy"


def test_a_chain_has_a_node_for_each_guess_and_the_root() -> None:
    assert arguments_of("spec.head=h", "spec.depth=7")["speculative_num_draft_tokens"] == 8
    with pytest.raises(ConfigError, match=r"spec.nodes is 6; a chain of spec.depth 7 has 8 nodes"):
        arguments_of("spec.head=h", "spec.depth=7", "spec.nodes=6")


def test_without_a_head_or_depth_nothing_drafts() -> None:
    for settings in (("spec.head=none",), ("spec.head=auto",), ("spec.head=h", "spec.depth=0", "spec.nodes=1")):
        assert not drafts(config_of(*settings))
        assert not [key for key in arguments_of(*settings) if key.startswith("speculative")]


def test_several_machines() -> None:
    spread = ("sglang.nnodes=2", "sglang.tp=2", "sglang.dist_init_addr=10.0.0.1:5000")
    given = arguments_of(*spread, "sglang.node_rank=1")
    assert (given["nnodes"], given["node_rank"], given["dist_init_addr"]) == (2, 1, "10.0.0.1:5000")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ("sglang.pp=2", "spec.head=h"),
            "sglang.pp is 2 and spec.head is set: SGLang does not run EAGLE-3 with pipeline",
        ),
        (("sglang.nnodes=2", "sglang.node_rank=2"), "sglang.node_rank is 2; with sglang.nnodes 2 it is at most 1"),
        (("sglang.nnodes=2",), "sglang.dist_init_addr is not set"),
        (("spec.simulate_acceptance=2.5",), "spec.simulate_acceptance is 2.5"),
        (("spec.require_provenance=true",), "spec.require_provenance is true; only Aerie's own engine reads the cards"),
        (("engine.attention=cpp",), "engine.attention cpp is Aerie's own"),
        (("engine.attention=reference",), "engine.attention reference is Aerie's own"),
        (("sglang.arguments.tp_size=2",), "sglang.arguments.tp_size is a setting of Aerie's: say sglang.tp"),
        (("sglang.arguments.max_running_requests=8",), "say scheduler.max_running"),
        (("sglang.arguments.speculative_eagle_topk=8",), "say spec.topk"),
        (("sglang.arguments.skip_tokenizer_init=false",), "cannot be set: the front end needs it as it is"),
        (("sglang.arguments.grammar_backend=xgrammar",), "cannot be set: the front end needs it as it is"),
        (("sglang.arguments.enable_custom_logit_processor=true", "spec.head=h"), "does not apply such processors"),
    ],
)
def test_what_cannot_be_is_refused_by_name(settings: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")) as caught:
        arguments_of(*settings)
    assert caught.value.param is not None and caught.value.param in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"]},
        {"text_config": {"sliding_window": 4096, "layer_types": ["sliding_attention"]}},
        {"sliding_window": 4096},
    ],
)
def test_trees_are_refused_where_layers_have_a_window(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    tree = (f"model.path={tmp_path}", "spec.head=h", "spec.depth=3", "spec.topk=4", "spec.nodes=8")
    with pytest.raises(ConfigError, match=r"spec\.topk is 4.*sliding window.*set spec\.topk=1"):
        arguments_of(*tree)
    chain = arguments_of(f"model.path={tmp_path}", "spec.head=h", "spec.depth=3", "spec.topk=1")
    assert chain["speculative_eagle_topk"] == 1


@pytest.mark.parametrize(
    "config", [{}, {"sliding_window": 128, "use_sliding_window": False}, {"layer_types": ["full_attention"]}]
)
def test_trees_are_drafted_for_models_without_a_window(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    tree = (f"model.path={tmp_path}", "spec.head=h", "spec.depth=3", "spec.topk=4", "spec.nodes=8")
    assert arguments_of(*tree)["speculative_eagle_topk"] == 4


def test_pipelines_and_processors_are_fine_without_a_head() -> None:
    assert arguments_of("sglang.pp=2", "spec.head=none")["pp_size"] == 2
    assert arguments_of("sglang.arguments.enable_custom_logit_processor=true")["enable_custom_logit_processor"]


def test_settings_without_a_meaning_there_are_listed() -> None:
    assert unused_settings(config_of("spec.head=h", "spec.depth=3")) == []
    given = config_of("spec.head=h", "scheduler.long_prefill_threshold=48", "spec.draft_temperature=2")
    assert unused_settings(given) == ["scheduler.long_prefill_threshold", "spec.draft_temperature"]
    assert unused_settings(config_of("spec.head=none", "spec.depth=3")) == ["spec.depth"]
    given = config_of("spec.head=h", "engine.kernels=torch", "spec.confidence_threshold=0.3", "spec.quantization=none")
    assert unused_settings(given) == ["engine.kernels", "spec.confidence_threshold", "spec.quantization"]


def test_no_setting_is_ignored_in_silence() -> None:
    """Whoever adds a setting says here what it means to SGLang's engine."""
    passed = arguments._PASSED | arguments._NEGATED | arguments._SPREAD | arguments._OTHERS
    refused = {"spec.simulate_acceptance", "spec.require_provenance"}
    elsewhere = {
        *("model.revision", "model.offline", "model.served_name", "spec.revision", "engine.kind", "sglang.arguments"),
        *(key for key in known_keys() if key.startswith(("server.", "limits."))),
        "scheduler.max_waiting",  # the front end's admission
        "model.quantization",  # refused before an engine starts
    }
    assert {*passed, *arguments._UNUSED, *refused, *elsewhere} == set(known_keys())
