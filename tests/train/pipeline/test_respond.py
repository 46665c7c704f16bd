"""The target answers over HTTP: in the prompts' order, again after failures, and only what is missing after a kill."""

import contextlib
import json
from pathlib import Path

import pytest

from aerie.contracts.errors import AerieError
from aerie.train.pipeline import respond as module
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.lines import mend, read_own
from aerie.train.pipeline.respond import respond
from tests.train.pipeline.endpoint import Endpoint
from tests.train.pipeline.tiny import QUESTIONS, changed, run_to, tree_bytes


class _Killed(Exception):
    pass


def at(endpoint: Endpoint) -> contextlib.AbstractContextManager[str]:
    return contextlib.nullcontext(endpoint.url)


def test_a_killed_start_is_finished_with_the_same_bytes(
    shared: PipelineConfig, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after three answers; the journal's last line is torn, as a kill may leave it."""
    calm = run_to(shared, "respond")
    config = changed(shared, work=str(tmp_path), respond={"concurrency": 1})
    run_to(config, "filter")
    with Endpoint(target) as endpoint:
        real, said = module._converse, []

        async def converse(*arguments: object) -> object:
            if len(said) == 3:
                raise _Killed
            said.append(1)
            return await real(*arguments)  # type: ignore[arg-type]

        with monkeypatch.context() as patch, pytest.raises(_Killed):
            patch.setattr(module, "_converse", converse)
            respond(config, at(endpoint))
        journal = tmp_path / "respond.partial/journal.jsonl"
        kept = len(mend(journal))
        assert kept == 3
        with journal.open("ab") as file:
            file.write(b'{"id": "to')
        before = endpoint.asked
        folder = respond(config, at(endpoint))
        assert endpoint.asked - before == len(QUESTIONS) - kept
    assert tree_bytes(folder) == tree_bytes(calm)


def test_answers_are_in_order_and_carry_their_ids(shared: PipelineConfig) -> None:
    folder = run_to(shared, "respond")
    records = list(read_own(folder / "conversations.jsonl"))
    assert [record["turns"][0]["content"] for record in records] == QUESTIONS
    for record in records:
        turn = record["turns"][-1]
        assert turn["role"] == "assistant" and turn["prompt_token_ids"] and 0 < len(turn["token_ids"]) <= 24
    counts = json.loads((folder / "manifest.json").read_text())["counts"]
    assert counts["conversations"] == counts["answers"] == 8 and counts["licenses"] == {"CC0-1.0": 8}


def test_busy_endpoints_are_asked_again(shared: PipelineConfig, target: Path, tmp_path: Path) -> None:
    config = changed(shared, work=str(tmp_path), respond={"concurrency": 1, "max_tokens": 2, "temperatures": [1.0]})
    run_to(config, "filter")
    with Endpoint(target, failing=1, token_ids=False) as endpoint:
        folder = respond(changed(config, respond={"retries": 2}), at(endpoint))
        assert endpoint.asked == len(QUESTIONS) + 1
        assert len({body["seed"] for body in endpoint.bodies}) == len(QUESTIONS)
        assert {body["temperature"] for body in endpoint.bodies} == {1.0}
    assert all("token_ids" not in record["turns"][-1] for record in read_own(folder / "conversations.jsonl"))


@pytest.mark.parametrize("every", [True, False])
def test_a_prompt_is_answered_at_every_temperature_or_at_one_in_turn(
    shared: PipelineConfig, target: Path, tmp_path: Path, every: bool
) -> None:
    changes = {"concurrency": 1, "max_tokens": 2, "temperatures": [0.0, 1.0], "every_temperature": every}
    config = changed(shared, work=str(tmp_path), respond=changes)
    run_to(config, "filter")
    with Endpoint(target) as endpoint:
        respond(config, at(endpoint))
        asked = [body["temperature"] for body in endpoint.bodies]
    assert asked == [0.0, 1.0] * (len(QUESTIONS) if every else len(QUESTIONS) // 2)


def test_unanswered_prompts_fail_the_stage_and_can_be_asked_later(
    shared: PipelineConfig, target: Path, tmp_path: Path
) -> None:
    config = changed(shared, work=str(tmp_path), respond={"concurrency": 1, "max_tokens": 2, "retries": 0})
    run_to(config, "filter")
    with Endpoint(target, failing=1) as endpoint:
        with pytest.raises(AerieError, match=r"1 of 8 prompts were not answered"):
            respond(config, at(endpoint))
        assert not (tmp_path / "respond").exists()
        folder = respond(config, at(endpoint))
        assert endpoint.asked == len(QUESTIONS) + 1
    assert json.loads((folder / "manifest.json").read_text())["counts"]["unanswered"] == 0


def test_an_endpoint_that_is_not_there_is_named(shared: PipelineConfig, tmp_path: Path) -> None:
    config = changed(shared, work=str(tmp_path), respond={"retries": 0})
    run_to(config, "filter")
    with pytest.raises(AerieError, match=r"http://127.0.0.1:9/v1 does not answer"):
        respond(config, contextlib.nullcontext("http://127.0.0.1:9/v1"))


async def test_turns_are_answered_one_after_the_other_and_stop_after_half_an_answer() -> None:
    seen: list[list[str]] = []

    async def ask(turns: list[dict]) -> dict:
        seen.append([turn["role"] for turn in turns])
        return {"role": "assistant", "content": "x", "finish_reason": "stop" if len(seen) < 2 else "length"}

    asked = [{"role": role, "content": role} for role in ("system", "user", "user", "user")]
    turns = await module._answered(asked, ask)
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "user", "assistant"]
    assert seen == [["system", "user"], ["system", "user", "assistant", "user"]]


def test_thoughts_are_kept_by_either_name() -> None:
    for name in ("reasoning_content", "reasoning"):
        choice = {"finish_reason": "stop", "message": {"role": "assistant", "content": "42", name: "six by seven"}}
        assert module._turn({"choices": [choice]})["reasoning_content"] == "six by seven"
