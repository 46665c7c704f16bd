"""Exercises as prompts of a pipeline: with the ids that the template gives, asked and learned as they are."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from aerie.contracts.errors import AerieError
from aerie.train.demo.chat import Chat
from aerie.train.demo.config import TaskTarget
from aerie.train.demo.model import export, fresh_model
from aerie.train.demo.prompts import draw_prompts, held_out_prompts
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.lines import read_own
from aerie.train.pipeline.features import make_features
from aerie.train.pipeline.filter import filter_prompts
from aerie.train.pipeline.prompts import make_prompts
from aerie.train.pipeline.respond import respond
from tests.train.pipeline.endpoint import Endpoint
from tests.train.pipeline.tiny import answered_in_place


@pytest.fixture
def folder(run: TaskTarget, words: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    """A random target of the run."""
    deep = run.architecture.model_copy(update={"num_hidden_layers": 8})
    torch.manual_seed(0)
    export(fresh_model(deep, words), words, tmp_path / "target")
    return tmp_path / "target"


@pytest.fixture
def config(run: TaskTarget, folder: Path, tmp_path: Path) -> PipelineConfig:
    data = {
        "target": str(folder),
        "work": str(tmp_path / "work"),
        "pretrain": run.model_dump() | {"shares": {"counting": 1, "tools": 2}},
        "prompts": {"drawn": 4},
        "filter": {"near_duplicate": 1, "overlap_words": 1000, "personal": []},
        "respond": {"max_tokens": 4, "concurrency": 1},
        "features": {"mode": "online", "longest": 512},
        "vocabulary": {"size": 300},
        "evaluate": {"drawn": 1},
    }
    return PipelineConfig.model_validate(data)


def test_exercises_are_drawn_as_the_model_reads_them(run: TaskTarget, folder: Path) -> None:
    first, again = (list(draw_prompts(run, folder, 6, seed=0)) for _ in range(2))
    assert first == again and len(first) >= 6  # one of each answer
    chat = Chat.of(folder)
    for drawn in first:
        assert chat.decode(drawn["prompt_token_ids"]) == drawn["turns"][0]["content"]
    held_out = held_out_prompts(run, folder, 2, seed=0)
    assert set(held_out) == {*run.shares, "mixed"} and all(len(found) == 2 for found in held_out.values())


def test_a_head_learns_what_the_target_says_after_tools_and_results(config: PipelineConfig) -> None:
    prompts = list(read_own(make_prompts(config) / "prompts.jsonl"))
    filter_prompts(config)
    records = list(read_own(respond(config, answered_in_place(config)) / "conversations.jsonl"))
    asked = {record["id"]: record["prompt_token_ids"] for record in prompts}
    assert records and any("<tool_response>" in record["turns"][0]["content"] for record in records)
    for record in records:
        answer = record["turns"][-1]
        assert answer["prompt_token_ids"] == asked[record["id"]] and len(answer["token_ids"]) <= 4
    assert (make_features(config) / "index.json").exists()


def test_an_endpoint_without_token_ids_cannot_answer_exercises(config: PipelineConfig, folder: Path) -> None:
    make_prompts(config)
    filter_prompts(config)
    with Endpoint(folder, token_ids=False) as endpoint, pytest.raises(AerieError, match="returned no token ids"):
        respond(config, nullcontext(endpoint.url))
