"""Prompts that name a schema: what is read from them, strictness, and answers of the demo pair."""

from pathlib import Path

import jsonschema
import pytest

from aerie.commands.prompts import named_schemas
from aerie.contracts.config import load_config
from aerie.engine.lanes.inline import InlineLane
from aerie.probe.named_schemas import Named, measure_named, schema_in
from aerie.probe.structured import Sizes
from aerie.server.text.tokenizer import Tokenizer
from aerie.worker import build_worker
from tests.house import HOME

ONE = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}


def test_the_schema_of_a_prompt_is_its_first_object_with_a_type() -> None:
    text = 'Fill this JSON schema: {"type": "array", "items": {"type": "object", "properties": {}}}\n\nA {text} "type".'
    assert schema_in(text) == {"type": "array", "items": {"type": "object", "properties": {}}}
    with pytest.raises(ValueError, match="substring"):
        schema_in("no schema")


def test_a_strict_schema_requires_what_it_names_and_no_more() -> None:
    strict = Named([1], {"type": "array", "items": ONE}).strict.schema
    jsonschema.validate([{"name": "x", "age": 1}], strict)
    for wrong in ([{"name": "x"}], [{"name": "x", "age": 1, "more": 2}]):
        jsonschema.validate(wrong, {"type": "array", "items": ONE})
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, strict)


def test_answers_match_what_their_prompts_name() -> None:
    settings = ["engine.lane=inline", "engine.kv_tokens=8192", "engine.threads=1"]
    config = load_config(Path(HOME / "configs/serve/demo.yaml"), settings)
    tokenizer, checked = Tokenizer.served(Path(config.model.path), config.server), list[object]()

    def check(value: object, schema: dict) -> None:
        jsonschema.validate(value, schema)
        checked.append(value)

    cells = measure_named(
        config,
        named_schemas(config, 4),
        lambda one: InlineLane(build_worker(one)),
        tokenizer.decode,
        check,
        Sizes(temperatures=(0.8,), max_tokens=200),
    )
    tokenizer.close()
    assert [(cell["mode"], cell["strict"]) for cell in cells] == [
        (mode, strict) for mode in ("chain", "tree") for strict in (False, True)
    ]
    assert len(checked) == sum(cell["valid"] for cell in cells) > 8
    assert all(cell["same"] >= 3 and 0 < cell["masks_a_choice"] < 1 for cell in cells)  # it writes JSON by itself
    assert all(cell["lower"] <= cell["over_free"] <= cell["upper"] for cell in cells)
