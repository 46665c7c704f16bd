"""Exercises as prompts of a pipeline: with the ids that the template gives, asked and learned as they are."""

import itertools
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from aerie.contracts.errors import AerieError
from aerie.train.demo.chat import Chat
from aerie.train.demo.config import LongerEnd, Pretraining
from aerie.train.demo.model import export, fresh_model
from aerie.train.demo.prompts import draw_prompts, held_out_prompts
from aerie.train.pipeline.config import PipelineConfig, PromptsStage
from aerie.train.pipeline.data.lines import read_own
from aerie.train.pipeline.features import make_features
from aerie.train.pipeline.filter import filter_prompts
from aerie.train.pipeline.prompts import make_prompts
from aerie.train.pipeline.respond import respond
from tests.train.pipeline.endpoint import Endpoint
from tests.train.pipeline.tiny import answered_in_place


@pytest.fixture
def folder(run: Pretraining, words: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    """A random target of the run."""
    deep = run.architecture.model_copy(update={"num_hidden_layers": 8})
    torch.manual_seed(0)
    export(fresh_model(deep, words), words, tmp_path / "target")
    return tmp_path / "target"


@pytest.fixture
def config(run: Pretraining, folder: Path, tmp_path: Path) -> PipelineConfig:
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


def test_exercises_are_drawn_as_the_model_reads_them(run: Pretraining, folder: Path) -> None:
    first, again = (list(draw_prompts(run, folder, 6, seed=0, shares={})) for _ in range(2))
    assert first == again and len(first) >= 6  # one of each answer
    chat = Chat.of(folder)
    for drawn in first:
        assert chat.decode(drawn["prompt_token_ids"]) == drawn["turns"][0]["content"]
    end = {"longer": LongerEnd(steps=1, size=4, longest=400, tokens_per_batch=400, matrix_rate=0, vector_rate=0)}
    longer = list(draw_prompts(run.model_copy(update=end), folder, 6, seed=0, shares={}))
    assert max(len(one["prompt_token_ids"]) for one in longer) <= 400
    assert sum(len(one["prompt_token_ids"]) for one in longer) > sum(len(one["prompt_token_ids"]) for one in first)
    held_out = held_out_prompts(run, folder, 2, seed=0)
    assert set(held_out) == {*run.shares, "mixed"} and all(len(found) == 2 for found in held_out.values())


def test_heads_may_be_asked_more_of_a_task_than_their_target_was(config: PipelineConfig) -> None:
    def tools(**shares: float) -> int:
        own = config.model_copy(
            update={"prompts": PromptsStage(drawn=24, shares=shares), "work": config.work + str(shares)}
        )
        return sum("<tools>" in one["turns"][0]["content"] for one in read_own(make_prompts(own) / "prompts.jsonl"))

    assert tools(tools=0.01, counting=9) < 3 < tools(tools=9)
    with pytest.raises(ValueError, match=r"prompts\.shares names tabels; pretrain\.shares has counting, tools"):
        PipelineConfig.model_validate(config.model_dump() | {"prompts": {"drawn": 4, "shares": {"tabels": 2}}})


def test_no_two_questions_about_docstrings_are_equal(run: Pretraining, folder: Path) -> None:
    """There are 160, asked in four ways."""
    run = run.model_copy(update={"shares": {"docstrings": 1}})
    asked = [drawn["turns"][0]["content"] for drawn in draw_prompts(run, folder, 100, seed=0, shares={})]
    later = [text for before, text in itertools.pairwise(asked) if text.startswith(before)]  # behind other questions
    assert len(set(later)) == len(later) > 290


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
