"""`LLM(...)` takes what people write for vLLM and SGLang, and says what it does not take."""

from typing import Any

import pytest

from aerie import LLM
from aerie.contracts.errors import ConfigError
from aerie.keywords import overrides_of_keywords


@pytest.mark.parametrize(
    ("given", "overrides"),
    [
        ({"max_model_len": 4096}, ["model.max_length=4096"]),
        ({"context_length": 4096}, ["model.max_length=4096"]),
        ({"dtype": "float32", "served_model_name": "mine"}, ["model.dtype=float32", "model.served_name=mine"]),
        ({"enforce_eager": True}, ["engine.graphs=false"]),
        ({"enforce_eager": False, "revision": None, "trust_remote_code": False}, []),
        ({"enable_prefix_caching": False}, ["scheduler.prefix_cache=false"]),
        ({"tensor_parallel_size": 2}, ["sglang.tp=2"]),
        ({"spec__depth": 5, "model__path": "a folder"}, ["spec.depth=5", 'model.path="a folder"']),
        (
            {"speculative_config": {"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}},
            ["spec.head=org/head", "spec.depth=3", "spec.topk=1", "spec.nodes=4"],
        ),
    ],
)
def test_keywords_are_the_flags_of_the_command_line(given: dict[str, Any], overrides: list[str]) -> None:
    assert overrides_of_keywords(given) == overrides


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpu_memory_utilization": 0.9}, "^gpu_memory_utilization is not offered: engine.memory_share"),
        ({"trust_remote_code": True}, "^trust_remote_code is not offered: code out of a checkpoint"),
        ({"max_modl_len": 4096}, r"^unknown flag max_modl_len; did you mean max_model_len\? .*section__key=value"),
        ({"speculative_config": {"method": "ngram"}}, "^speculative_config: the method must be eagle3"),
    ],
)
def test_what_is_not_offered_says_why(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        overrides_of_keywords(given)


def test_a_model_takes_them() -> None:
    with LLM(
        "configs/serve/demo.yaml", max_model_len=512, max_num_seqs=2, engine__threads=1, engine__lane="inline"
    ) as llm:
        assert llm.config.model.max_length == 512 and llm.config.scheduler.max_running == 2
