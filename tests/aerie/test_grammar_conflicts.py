"""What a grammar allows against what other fields of the request ask: the grammar wins, whatever is drafted."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from aerie.contracts.config import load_config
from aerie.contracts.grammar import Grammar
from aerie.contracts.messages import Generate
from aerie.contracts.sampling import SamplingParams, SpeculationParams
from aerie.engine.lanes.inline import InlineLane
from aerie.probe.drive import drive
from aerie.server.text.tokenizer import Tokenizer
from aerie.worker import build_worker
from tests.house import HOME

TOKENIZER = Tokenizer(HOME / "models/demo/target")
(A, Z, COLON) = (TOKENIZER.ids(text, add_special_tokens=False)[0] for text in ("A", "z", ":"))
CONFLICTS: dict[str, tuple[str, dict[str, Any]]] = {
    "min_tokens and the end": ("ab", {"min_tokens": 20}),
    "allowed ids and the grammar": ("xy", {"allowed_token_ids": (Z,)}),
    "a bias and the mask": ("xy", {"logit_bias": {COLON: 100.0}}),
    "stop ids that are forbidden": ("pq", {"stop_token_ids": (A, COLON)}),
}


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_the_grammar_wins(temperature: float) -> None:
    settings = ["engine.lane=inline", "engine.kv_tokens=2048", "model.max_length=96", "scheduler.max_running=8"]
    config = load_config(Path(HOME / "configs/serve/demo.yaml"), settings)
    asked = [
        Generate(
            id=f"{name}, {drafts}",
            prompt=[5, 6, 7],
            sampling=SamplingParams(temperature=temperature, max_tokens=24, seed=1, **fields),
            speculation=SpeculationParams(enabled=drafts),
            grammar=Grammar(kind="regex", text=text),
        )
        for name, (text, fields) in CONFLICTS.items()
        for drafts in (True, False)
    ]
    with closing(InlineLane(build_worker(config))) as lane:
        answers = drive(lane, config, asked, concurrency=8).answers
    said = {answer.request.id: (TOKENIZER.decode(answer.tokens), answer.finish) for answer in answers}
    assert said == {one.id: (CONFLICTS[one.id.rpartition(", ")[0]][0], "stop") for one in asked}
