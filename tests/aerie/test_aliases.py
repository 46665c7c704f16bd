"""The flags of other servers: each means one setting, and what is not offered says so."""

import json

import pytest

from aerie.aliases import ALIASES, overrides_of
from contracts.config import known_keys, load_config, parse_config
from contracts.errors import ConfigError


@pytest.mark.parametrize("alias", ALIASES, ids=lambda alias: f"{alias.flag} {alias.value or ''}".strip())
def test_a_flag_is_a_setting(alias) -> None:
    assert alias.key in known_keys()
    if alias.value is not None:
        assert overrides_of([alias.flag]) == [f"{alias.key}={alias.value}"]
    else:
        assert overrides_of([alias.flag, "7"]) == overrides_of([f"{alias.flag}=7"]) == [f"{alias.key}=7"]


def test_flags_and_settings_mix() -> None:
    given = ["--max-model-len", "512", "spec.depth=3", "--port=9", "--disable-overlap-schedule", "--tp", "1"]
    config = load_config(None, overrides_of(given))
    assert (config.model.max_length, config.spec.depth, config.server.port) == (512, 3, 9)
    assert not config.scheduler.overlap


def test_the_speculative_config_of_vllm_is_a_chain() -> None:
    text = json.dumps({"method": "eagle3", "model": "some/head", "num_speculative_tokens": 5})
    spec = load_config(None, overrides_of(["--speculative-config", text])).spec
    assert (spec.head, spec.depth, spec.topk, spec.nodes) == ("some/head", 5, 1, 6)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--speculative-num-stepz=3"], "did you mean --speculative-num-steps"),
        (["--trust-remote-code"], "code out of a checkpoint is never run"),
        (["--tensor-parallel-size", "2"], "--tensor-parallel-size 2 is not offered"),
        (["--speculative-algorithm", "NGRAM"], "not offered"),
        (["--port"], "--port needs a value"),
        (["--speculative-config", "{"], "not JSON"),
        (["--speculative-config", '{"method": "medusa"}'], "the method must be eagle3"),
        (["--speculative-config", '{"method": "eagle3", "quantization": "fp8"}'], "quantization is not offered"),
        (["--speculative-config", "[1]"], "an object"),
        (["--speculative-config", '{"num_speculative_tokens": "many"}'], "many"),
    ],
)
def test_what_is_not_offered_says_so(given: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        overrides_of(given)


def test_a_shape_asked_for_replaces_the_table_by_load(tmp_path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("spec: {by_load: [{rows: 4, depth: 5, nodes: 6}]}")
    assert load_config(file, ["scheduler.max_running=3"]).spec.by_load
    assert not load_config(file, overrides_of(["--speculative-num-steps", "2"])).spec.by_load
    kept = ["spec.depth=2", "spec.by_load=[{rows: 1, depth: 2, nodes: 3}]"]
    assert load_config(file, kept).spec.by_load[0].rows == 1


def test_the_short_form_of_the_engine() -> None:
    assert parse_config({"engine": "sglang"}).engine.kind == "sglang"
