"""Random schemas and cancellations: what they must survive, and that the checks see what does not."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from aerie.contracts.config import Config, load_config
from aerie.contracts.errors import BadRequest
from aerie.contracts.grammar import Grammar
from aerie.engine.grammars.matcher import Vocabulary
from aerie.engine.lanes.inline import InlineLane
from aerie.engine.model.config import read_model_config
from aerie.probe.grammars import cancel_at_random, fuzz_schemas
from aerie.server.text.grammars import Constraint, Grammars
from aerie.server.text.tokenizer import Tokenizer
from aerie.worker import build_worker
from tests.house import HOME

FOLDER = HOME / "models/demo/target"


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.of_model(FOLDER, read_model_config(FOLDER).vocabulary, (1,))


@pytest.fixture
def checks() -> Iterator[Grammars]:
    made = Grammars(Tokenizer(FOLDER), Config().limits)
    yield made
    made.close()


def test_random_schemas_build_or_are_refused_by_name(vocabulary: Vocabulary, checks: Grammars) -> None:
    def check(text: str) -> None:
        checks.check(Constraint("guided_json", lambda: Grammar(kind="json_schema", text=text)), [1])

    figures = fuzz_schemas(check, vocabulary, 150)
    assert figures["refused"] > 40 and figures["built"] > 20 and figures["peak_mb"] > 0


def test_a_refusal_without_a_field_is_seen(vocabulary: Vocabulary) -> None:
    def check(text: str) -> None:
        raise BadRequest("no", code="invalid_grammar")

    with pytest.raises(AssertionError, match="without a field"):
        fuzz_schemas(check, vocabulary, 3)


def test_requests_may_leave_at_any_time(checks: Grammars) -> None:
    settings = ["engine.lane=inline", "engine.kv_tokens=2048", "model.max_length=96", "scheduler.max_running=4"]
    config = load_config(Path(HOME / "configs/serve/demo.yaml"), settings)
    prompts = [[5, 6, 7], [8, 9, 10, 11]]
    with closing(InlineLane(build_worker(config))) as lane:
        figures = cancel_at_random(lane, config, prompts, 30)
        assert figures["cancelled"] == 30 <= figures["asked"] and figures["masks"]
