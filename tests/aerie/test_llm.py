"""Offline use on the demo pair: the answers of the server's engine, in the caller's own process."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aerie import LLM, SamplingParams
from aerie.contracts.errors import AerieError
from tests.house import HOME

CONFIG = str(HOME / "configs/serve/demo.yaml")
MODELS = Path(CONFIG).parent.parent.parent / "models/demo"
CHAT = [{"role": "user", "content": "Count from 20 to 60 in steps of 2."}]
OPEN = [{"role": "user", "content": "Tell me about the sea."}]
"""The demo knows no answer, so samples of it differ."""


def make(**overrides: object) -> LLM:
    torch.set_num_threads(1)
    small = {"engine__lane": "inline", "engine__threads": 1, "engine__kv_tokens": 8192}
    paths = {"model__path": MODELS / "target", "spec__head": MODELS / "head"}
    return LLM(CONFIG, **(small | paths | {"model__dtype": "float32"} | overrides))


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with make() as llm:
        yield llm


def test_a_prompt_and_its_ids_are_answered_alike(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12)
    text = "<|user|>Say this again:\n402 lamp Sore fan<|end|><|assistant|>"
    ids = llm.generate(text, params)[0].prompt_token_ids
    both = llm.generate([text, ids], params, use_tqdm=False)
    assert both[0].outputs[0].token_ids == both[1].outputs[0].token_ids
    assert both[0].outputs[0].text and both[0].outputs[0].finish_reason in ("stop", "length")
    assert [one.prompt for one in both] == [text, None]
    assert both[0].usage is not None and both[0].usage.steps > 0


def test_a_seed_gives_one_answer_with_and_without_speculation(llm: LLM) -> None:
    params = [SamplingParams(temperature=1.5, seed=seed, max_tokens=20) for seed in range(3)]
    drafted = llm.chat([OPEN] * 3, params, use_tqdm=False)
    with make(spec__head="none") as plain:
        other = plain.chat([OPEN] * 3, params, use_tqdm=False)
    assert [one.outputs[0].text for one in drafted] == [one.outputs[0].text for one in other]
    assert len({one.outputs[0].text for one in drafted}) > 1


def test_without_a_seed_answers_differ(llm: LLM) -> None:
    answers = llm.chat([OPEN] * 4, SamplingParams(temperature=1.5, max_tokens=16), use_tqdm=False)
    assert len({one.outputs[0].text for one in answers}) > 1


def test_an_error_leaves_nothing_of_its_batch_behind(llm: LLM) -> None:
    """The others were in flight when it came."""
    params = SamplingParams(temperature=0.0, max_tokens=20)
    before = llm.generate("What does", params, use_tqdm=False)[0].outputs[0].token_ids
    with pytest.raises(AerieError, match="4000 tokens"):
        llm.generate(["What does", [9] * 4000, "x"], params)
    assert llm.generate("What does", params, use_tqdm=False)[0].outputs[0].token_ids == before


def test_several_answers_end_at_stop_strings(llm: LLM) -> None:
    free = SamplingParams(temperature=1.2, seed=5, n=3, max_tokens=24)
    whole = llm.chat(OPEN, free, use_tqdm=False)[0].outputs
    assert [one.index for one in whole] == [0, 1, 2]
    assert len({one.text for one in whole}) == 3, "each has noise of its own"
    stopped = llm.chat(OPEN, replace(free, stop=[" ", "\n"]), use_tqdm=False)[0].outputs
    for one, cut in zip(whole, stopped, strict=True):
        assert cut.text == re.split(r"[ \n]", one.text, maxsplit=1)[0]
        assert cut.finish_reason == "stop" and cut.stop_reason in (" ", "\n")
    kept = llm.chat(CHAT, replace(free, stop=" ", n=1, include_stop_str_in_output=True), use_tqdm=False)[0].outputs[0]
    assert kept.text.count(" ") == 1 and kept.text.endswith(" ")


def test_it_prints_nothing_where_no_terminal_is(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.chat(CHAT, SamplingParams(temperature=0.0, max_tokens=4))
    assert capfd.readouterr() == ("", "")


def test_a_chat_is_told_as_its_template_writes_it(llm: LLM) -> None:
    result = llm.chat(CHAT, SamplingParams(temperature=0.0, max_tokens=4))[0]
    assert result.prompt is not None and CHAT[0]["content"] in result.prompt and "<|user|>" in result.prompt


def test_a_closed_one_says_so() -> None:
    with make(spec__head="none") as llm:
        pass
    with pytest.raises(AerieError, match="this LLM is closed"):
        llm.generate("x")


async def test_it_runs_where_an_event_loop_runs_already(llm: LLM) -> None:
    """As in every cell of a notebook."""
    params = SamplingParams(temperature=0.0, max_tokens=4)
    assert llm.chat(CHAT, params, use_tqdm=False)[0].outputs[0].token_ids
    assert llm.generate("What", params, use_tqdm=False)[0].outputs[0].token_ids


def test_overrides_are_values_of_python(llm: LLM) -> None:
    given = {"model__served_name": None, "server__cors_origins": ("a", "b"), "spec__draft_temperature": float("inf")}
    shapes = [{"rows": 1, "depth": 2, "nodes": 3}]
    with make(spec__head="none", spec__by_load=shapes, server__api_key="123", **given) as other:
        config = other.config
    assert config.model.served_name == "target" and config.server.cors_origins == ("a", "b")
    assert config.spec.draft_temperature == float("inf") and config.server.api_key == "123"
    assert [shape.depth for shape in config.spec.by_load] == [2]


def test_errors_name_what_is_wrong(llm: LLM) -> None:
    with pytest.raises(AerieError, match="2 sampling parameters for 1 prompts"):
        llm.generate("x", [SamplingParams()] * 2)
    with pytest.raises(AerieError, match="temperature"):
        llm.generate("x", SamplingParams(temperature=99.0))
    with pytest.raises(AerieError, match="2048"):
        llm.generate([[9] * 4000], SamplingParams(max_tokens=1))
    for wrong in (SamplingParams(stop=["a", ""]), SamplingParams(n=0)):
        with pytest.raises(AerieError, match="no stop may be empty, n must be at least 1"):
            llm.generate("x", wrong)
    with pytest.raises(AerieError, match=r"did you mean 'spec\.depth'"):
        make(spec__dept=1)
