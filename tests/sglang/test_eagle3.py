"""SGLang's own EAGLE-3 worker beside Aerie's on the demo pair: the same greedy tokens, chains and trees, in fp32, and
the same acceptance length.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from aerie.contracts.sampling import SamplingParams
from aerie.spec.build import build_worker
from tests.engine.rounds import Rounds
from tests.sglang.conftest import HERE, STUB
from tests.sglang.models import sglang_config

DEMO = Path("models/demo")
QUESTIONS = (
    "Count from 4 to 90 in steps of 2.",
    "Say this again:\n402 lamp Sore fan Gitu rope",
    "What does os.walk do?",
)
TOKENS = 64
SHAPES = ((3, 1, 4), (3, 2, 6))
"""Steps, top-k and nodes: a chain and a tree."""


def prompts() -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(DEMO / "target" / "tokenizer.json"))
    return [tokenizer.encode(question).ids for question in QUESTIONS]


@pytest.fixture(scope="module")
def theirs() -> list[list[dict[str, Any]]]:
    """By shape, what SGLang answers to each prompt."""
    asked = {
        "target": str(DEMO / "target"),
        "head": str(DEMO / "head"),
        "prompts": prompts(),
        "tokens": TOKENS,
        "shapes": SHAPES,
    }
    path = os.pathsep.join([str(HERE / "shim"), str(STUB), "."])
    done = subprocess.run(
        [sys.executable, str(HERE / "eagle3_tokens.py")],
        input=json.dumps(asked),
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers: list[list[dict[str, Any]]] = json.loads(done.stdout.strip().splitlines()[-1])
    return answers


def ours(steps: int, topk: int, nodes: int) -> list[dict[str, Any]]:
    shape = {"depth": steps, "topk": topk, "nodes": nodes}
    config = sglang_config(
        DEMO / "target",
        engine={"kind": "native", "kv_tokens": 4096},
        model={"max_length": 512},
        spec={"head": str(DEMO / "head"), **shape},
    )
    rounds, found = Rounds(build_worker(config)), []
    for index, prompt in enumerate(prompts()):
        row = rounds.add(index, prompt, SamplingParams(temperature=0, max_tokens=TOKENS), drafting=True)
        passes = 0
        while not row.done:
            rounds.decode([row], **shape)
            passes += 1
        found.append({"ids": row.out, "passes": passes})
    return found


@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=("chain", "tree"))
def test_greedy_tokens_equal_sglangs(theirs: list[list[dict[str, Any]]], shape: int) -> None:
    assert [one["ids"] for one in theirs[shape]] == [one["ids"] for one in ours(*SHAPES[shape])]


def test_a_head_of_ours_is_accepted_by_sglang_as_we_measure_it(theirs: list[list[dict[str, Any]]]) -> None:
    """Committed tokens per verifying pass of the chain; the first token of each answer comes from its prompt."""
    lengths = [
        sum(len(one["ids"]) - 1 for one in found) / sum(one["passes"] for one in found)
        for found in (theirs[0], ours(*SHAPES[0]))
    ]
    assert lengths[0] > 1.2
    assert lengths[1] == pytest.approx(lengths[0], rel=0.02)
