"""The flags of other servers: each means one setting, and what is not offered says so."""

import json

import pytest

from aerie.aliases import ALIASES, overrides_of
from aerie.contracts.config import known_keys, load_config, parse_config
from aerie.contracts.errors import ConfigError
from aerie.resolve import with_local_model


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


def test_ranks_are_sglang_s_and_one_is_everybody_s() -> None:
    spread = overrides_of(["--tp", "4", "--nnodes=2", "--node-rank", "1", "--dist-init-addr", "10.0.0.1:5000"])
    sglang = load_config(None, ["engine.kind=sglang", *spread]).sglang
    assert (sglang.tp, sglang.nnodes, sglang.node_rank, sglang.dist_init_addr) == (4, 2, 1, "10.0.0.1:5000")
    native = ["model.path=models/demo/target", "spec.head=none"]
    with_local_model(load_config(None, [*native, *overrides_of(["--tensor-parallel-size", "1", "--dp-size", "1"])]))
    with pytest.raises(ConfigError, match=r"engine\.kind is native, which runs on one device; set engine\.kind"):
        with_local_model(load_config(None, [*native, *overrides_of(["--tensor-parallel-size", "2"])]))


def test_the_speculative_config_of_vllm_is_a_chain() -> None:
    text = json.dumps({"method": "eagle3", "model": "some/head", "num_speculative_tokens": 5})
    spec = load_config(None, overrides_of(["--speculative-config", text])).spec
    assert (spec.head, spec.depth, spec.topk, spec.nodes) == ("some/head", 5, 1, 6)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--speculative-num-stepz=3"], "did you mean --speculative-num-steps"),
        (["--trust-remote-code"], "code out of a checkpoint is never run"),
        (["--mem-fraction-static", "0.8"], "sglang.memory is that of weights and KV"),
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
