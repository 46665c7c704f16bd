"""Grammars with all that can come between two tokens of an answer: preemptions, prompts kept or read in chunks,
penalties and biases, chains, trees or no drafts, with overlap and without. Each answer is what its request gets alone.
"""

import json
import random
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from aerie.contracts.config import Config, load_config
from aerie.contracts.messages import Generate
from aerie.contracts.sampling import SamplingParams, SpeculationParams
from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Lane
from aerie.engine.grammars import ahead
from aerie.engine.lanes.inline import InlineLane
from aerie.probe.drive import Answer, Run, drive
from aerie.probe.shapes import chain_of, for_lane, shape_at, tree_of, with_shape
from aerie.probe.structured import GRAMMARS, matches
from aerie.server.text.tokenizer import Tokenizer
from aerie.worker import build_worker
from tests.house import HOME

TOKENIZER = Tokenizer(HOME / "models/demo/target")
ROWS, TOKENS = 6, 64
EACH = 3
"""Requests with the same grammar, one after the other: the long ones meet."""
SETTINGS = [
    "engine.lane=inline",
    "engine.kv_tokens=224",  # of which the rows would like three times as much
    "model.max_length=192",
    f"scheduler.max_running={ROWS}",
    "scheduler.prefill_chunk=24",
    "spec.planner=fixed",
]
SHARED = TOKENIZER.ids(
    "def read(path):\n    return [line.strip() for line in open(path)]\n\n\n" * 2, add_special_tokens=False
)
FIELDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"temperature": 2.0, "frequency_penalty": 0.7, "logit_bias": {20: 4.0, 30: -6.0}},
    {"temperature": 0.0, "repetition_penalty": 1.5, "frequency_penalty": 1.0},
    {"temperature": 1.0, "top_k": 20, "presence_penalty": 1.0},
]
CONFIG = load_config(Path(HOME / "configs/serve/demo.yaml"), SETTINGS)
CHAIN = chain_of(shape_at(CONFIG, 1))
SHAPES: dict[str, DraftShape] = {"off": CHAIN, "chain": CHAIN, "tree": tree_of(shape_at(CONFIG, 1))}


@pytest.fixture(scope="module")
def lane() -> Iterator[Lane]:
    with closing(InlineLane(build_worker(for_lane(CONFIG, list(SHAPES.values()), rows=ROWS)))) as lane:
        yield lane


@pytest.fixture(scope="module")
def alone(lane: Lane) -> list[Answer]:
    """Each request by itself, with no drafts, no overlap and nothing kept."""
    config = loop(CONFIG, overlap=False, prefix_cache=False, prefill_chunk=256)
    answers = [drive(lane, config, [one], concurrency=1).answers[0] for one in asked(drafts=False)]
    assert {answer.finish for answer in answers} == {"stop", "length"}
    return answers


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("mode", SHAPES)
def test_each_answer_is_the_one_alone(lane: Lane, alone: list[Answer], mode: str, overlap: bool) -> None:
    config = loop(with_shape(CONFIG, SHAPES[mode]), overlap=overlap)
    run = drive(lane, config, asked(drafts=mode != "off"), concurrency=2 * ROWS)
    assert run.tokens == [answer.tokens for answer in alone]
    assert [answer.finish for answer in run.answers] == [answer.finish for answer in alone]
    for place, answer in enumerate(run.answers):
        if answer.finish == "stop":
            assert matches(place // EACH, TOKENIZER.decode(answer.tokens), jsonschema.validate)
    assert_all_happened(run, drafts=mode != "off")


@pytest.mark.parametrize("mode", SHAPES)
def test_masks_that_come_late_change_nothing(
    lane: Lane, alone: list[Answer], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Some masks are there before the pass ends, others after it."""
    make, coins, late = ahead._make, random.Random(7), list[bool]()

    def made_late(*given: Any) -> None:
        late.append(coins.random() < 0.3)
        time.sleep(0.02 * late[-1])
        make(*given)

    monkeypatch.setattr(ahead, "_make", made_late)
    run = drive(lane, with_shape(CONFIG, SHAPES[mode]), asked(drafts=mode != "off"), concurrency=2 * ROWS)
    assert run.tokens == [answer.tokens for answer in alone]
    assert any(late) and not all(late)


def assert_all_happened(run: Run, *, drafts: bool) -> None:
    usages = [answer.usage for answer in run.answers if answer.usage is not None]
    hit = [usage for usage in usages if usage.preemptions and usage.cached_tokens]
    assert hit and any(not usage.preemptions for usage in usages)
    assert run.masking.masks
    assert (sum(usage.accepted for usage in usages) > 0) == drafts
    assert (run.masking.drafted > 0) == drafts


def loop(config: Config, **fields: Any) -> Config:
    return config.model_copy(update={"scheduler": config.scheduler.model_copy(update=fields)})


def asked(*, drafts: bool) -> list[Generate]:
    """Each grammar with several fields, all behind the same beginning of a prompt."""
    first = SamplingParams(max_tokens=TOKENS)
    return [
        Generate(
            id=str(place),
            prompt=[*SHARED, *TOKENIZER.ids(json.dumps({"n": place % 5}), add_special_tokens=False)],
            sampling=replace(first, seed=place, **FIELDS[place % len(FIELDS)]),
            speculation=SpeculationParams(enabled=drafts),
            grammar=GRAMMARS[place // EACH],
        )
        for place in range(EACH * len(GRAMMARS))
    ]
