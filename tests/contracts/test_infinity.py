"""Infinity, which JSON has no number for, reaches the other processes and /config."""

import json

from aerie.contracts.config import Config, load_config, masked


def test_infinity_survives_the_way_to_another_process() -> None:
    config = load_config(None, ["model.path=models/demo/target", "spec.draft_temperature=.inf"])
    assert config.spec.draft_temperature == float("inf")
    assert Config.model_validate_json(config.model_dump_json()) == config


def test_infinity_is_shown_as_json_that_every_reader_takes() -> None:
    shown = masked(load_config(None, ["model.path=models/demo/target", "spec.draft_temperature=.inf"]))
    assert json.loads(json.dumps(shown, allow_nan=False))["spec"]["draft_temperature"] == "Infinity"
