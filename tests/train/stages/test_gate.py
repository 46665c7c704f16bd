"""The gate of the pipeline: one conversation learned by heart, exported and served, is drafted to the full depth."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import Server
from tests.train.stages.tiny import ENGINE, QUESTIONS, changed, write_prompts
from train.stages.config import PipelineConfig
from train.stages.lines import read_own

HOME = Path(__file__).parents[3]
DEPTH = 3
ANSWER = 41


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_conversation_by_heart_is_accepted_to_its_depth(pipeline: PipelineConfig, tmp_path: Path) -> None:
    """Through the command line and real servers: one that answers, one that serves the head under its provenance."""
    write_prompts(tmp_path / "prompts.jsonl", QUESTIONS[:1])
    config = changed(
        pipeline,
        respond={"max_tokens": ANSWER},
        train={"steps": 200, "rate": 5e-3, "depth": DEPTH + 1, "checkpoint_every": 200, "log_every": 50, "clip": 5.0},
    )
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    done = subprocess.run(
        [sys.executable, "-m", "aerie", "train", "all", str(tmp_path / "config.yaml")],
        cwd=HOME,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    head = Path(config.work) / "export/specforge"
    words = [f"spec.head={head}", f"spec.depth={DEPTH}", f"spec.nodes={DEPTH + 1}", "spec.require_provenance=true"]
    with Server(*words, *ENGINE, target=config.target) as server:
        answer = server.client().chat.completions.create(
            model=server.name,
            messages=[{"role": "user", "content": QUESTIONS[0]}],
            temperature=0,
            max_tokens=ANSWER,
            extra_body={"return_token_ids": True},
        )
    (record,) = read_own(Path(config.work) / "respond/conversations.jsonl")
    assert answer.choices[0].token_ids == record["turns"][-1]["token_ids"]  # as without a head
    told = answer.usage.model_dump()["speculation"]
    assert told["acceptance_length"] >= 1 + 0.95 * DEPTH, told
