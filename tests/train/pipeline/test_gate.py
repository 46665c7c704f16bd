"""The gate of the pipeline: one conversation learned by heart, exported and served, is drafted to the full depth."""

from pathlib import Path

import pytest
from openai import OpenAI

from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.lines import read_own
from aerie.train.pipeline.order import Surroundings, run_stage, stages_of
from aerie.train_engine import measure_head, served, served_target
from tests.house import HOME
from tests.train.pipeline.tiny import ENGINE, changed, write_prompts

DEPTH = 3
ANSWER = 41
"""One token from the prompt, and ten steps of four."""
TARGET = "models/demo/target"
QUESTION = "Count from 10 to 90 in steps of 2."


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_conversation_by_heart_is_accepted_to_its_depth(pipeline: PipelineConfig, tmp_path: Path) -> None:
    """With the demo target, whose answers are text (a random one repeats itself), and real servers."""
    write_prompts(tmp_path / "prompts.jsonl", [QUESTION])
    config = changed(
        pipeline,
        target=str(HOME / TARGET),
        vocabulary={"size": 512},
        respond={"max_tokens": ANSWER},
        train={"steps": 120, "rate": 2e-3, "depth": DEPTH + 1, "checkpoint_every": 100, "log_every": 10, "clip": 5.0},
    )
    for name in stages_of(config):
        run_stage(name, config, Surroundings(served_target, measure_head))
    head = Path(config.work) / "export/specforge"
    words = [
        f"spec.head={head}",
        f"spec.depth={DEPTH}",
        f"spec.nodes={DEPTH + 1}",
        "spec.require_provenance=true",
        "spec.planner=fixed",
    ]
    with served([config.target, *words, *ENGINE]) as url, OpenAI(base_url=url, api_key="none") as client:
        answer = client.chat.completions.create(
            model="target",
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=ANSWER,
            extra_body={"return_token_ids": True},
        )
    (record,) = read_own(Path(config.work) / "respond/conversations.jsonl")
    assert answer.choices[0].token_ids == record["turns"][-1]["token_ids"]  # as without a head
    reported = answer.usage.model_dump()["speculation"]
    assert reported["acceptance_length"] >= 1 + 0.95 * DEPTH, reported
