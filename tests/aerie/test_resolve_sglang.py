"""What SGLang's whole engine gets of a deployment: heads as folders, and what was said apart from what was not."""

import json
from pathlib import Path

import pytest

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.resolve import resolve_config, with_local_model

TARGET = "models/demo/target"


def resolved(target: str, *settings: str) -> Config:
    return with_local_model(resolve_config(target, ["engine.kind=sglang", *settings]))


def test_auto_finds_the_pair_as_a_folder_of_this_machine() -> None:
    head = Path(resolved(TARGET).spec.head)
    assert head.is_absolute() and (head / "config.json").is_file()


def test_a_named_head_is_a_folder_too_and_a_missing_one_an_error() -> None:
    assert resolved(TARGET, "spec.head=models/demo/head").spec.head == resolved(TARGET).spec.head
    with pytest.raises(ConfigError, match=r"spec\.head is 'nowhere', and there is no such folder"):
        resolved(TARGET, "spec.head=nowhere")


def test_architectures_that_aerie_does_not_run_are_served_without_a_pair(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 16}
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Unheard"], "text_config": sizes}))
    assert resolved(str(tmp_path)).spec.head == "none"


def test_what_was_not_said_stays_unsaid() -> None:
    config = resolved(TARGET, "scheduler.prefill_chunk=512")
    again = Config.model_validate_json(config.model_dump_json(exclude_unset=True))
    assert again.scheduler.model_fields_set == {"prefill_chunk"}
    assert again.engine.model_fields_set == {"kind"} and again == config


def test_ranks_are_not_for_aeries_own_engine() -> None:
    with pytest.raises(ConfigError, match=r"sglang\.tp is set and engine\.kind is native.*engine\.kind=sglang"):
        with_local_model(resolve_config(TARGET, ["sglang.tp=2"]))
    assert with_local_model(resolve_config(TARGET, ["sglang.tp=1"])).sglang.tp == 1


@pytest.mark.parametrize("kind", ["sglang", "sglang-model"])
def test_eight_bits_are_aerie_s_own_models(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"quantization is int8, which rounds Aerie's own models, .* is {kind}; set"):
        with_local_model(resolve_config(TARGET, [f"engine.kind={kind}", "model.quantization=int8"]))
