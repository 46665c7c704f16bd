"""Answers of the demo models, which know no JSON: they match their grammars, and are the same in every mode."""

from pathlib import Path

import jsonschema
import pytest

from aerie.contracts.config import load_config
from aerie.engine.lanes.inline import InlineLane
from aerie.probe.structured import CHOICES, GRAMMARS, SCHEMAS, Sizes, matches, measure_structured
from aerie.server.text.tokenizer import Tokenizer
from aerie.worker import build_worker
from tests.house import HOME


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(HOME / "models/demo/target")


def check(value: object, schema: dict) -> None:
    jsonschema.validate(value, schema, format_checker=jsonschema.FormatChecker())


def prompts(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    asked = ({"role": "user", "content": f"What does module number {number} do?"} for number in range(count))
    return [tokenizer.chat_ids([message], {}) for message in asked]


@pytest.mark.parametrize(
    ("file", "top_k", "temperatures"),
    [("demo.yaml", 0, (0.0, 2.0)), ("demo.yaml", 4, (0.8,)), ("demo-peagle.yaml", 0, (2.0,))],
)
def test_answers_match_and_are_the_same_in_every_cell(
    tokenizer: Tokenizer, file: str, top_k: int, temperatures: tuple[float, ...]
) -> None:
    config = load_config(Path(HOME / "configs/serve" / file), ["engine.lane=inline", "engine.kv_tokens=4096"])
    sizes = Sizes(temperatures=temperatures, concurrency=3, max_tokens=40, top_k=top_k)
    cells = measure_structured(
        [config],
        prompts(tokenizer, len(GRAMMARS)),
        lambda one: InlineLane(build_worker(one)),
        tokenizer.decode,
        check,
        sizes,
    )
    assert len(cells) == 6 * len(temperatures) and all(cell["equal"] for cell in cells)
    assert all(cell["valid"] == cell["stopped"] >= len(GRAMMARS) - 2 for cell in cells)
    assert all(cell["tokens_a_step"] > 1 for cell in cells if cell["mode"] != "off")
    assert all(cell["masks_a_choice"] > 0 for cell in cells)
    assert all((cell["forced_drafts"] > 0) == (cell["mode"] == "chain") for cell in cells)
    assert all(cell["forbidden_drafts"] <= cell["drafted"] for cell in cells)


def test_the_check_sees_what_does_not_match() -> None:
    with pytest.raises(jsonschema.ValidationError):
        matches(0, '{"name": "x"}', check)
    with pytest.raises(jsonschema.ValidationError):
        matches(4, '"2026-13-01"', check)
    assert not matches(len(SCHEMAS), "no capital.", check)
    assert not matches(len(SCHEMAS) + 1, CHOICES[0] + " ", check)
