"""Token ids are those that serving sees, and exactly what the target generated is marked as an answer."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aerie.engine.model.config import read_model_config
from aerie.server.text.tokenizer import Tokenizer
from aerie.train.pipeline.data.render import ChatRenderer

USER, SECOND = {"role": "user", "content": "What is os.path?"}, {"role": "user", "content": "And more?"}
ANSWER = {"role": "assistant", "content": "Common operations on paths.", "finish_reason": "stop"}
THINKING = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.role == 'assistant' and loop.last and m.reasoning_content %}"
    "<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def renderer(target: Path) -> ChatRenderer:
    return ChatRenderer(target, None, read_model_config(target).end_ids)


def marked(renderer: ChatRenderer, document: Any) -> str:
    """The answers' text, special tokens shown."""
    ids = [token for token, said in zip(document.ids, document.answer, strict=True) if said]
    return str(renderer.tokenizer.decode(ids))


def test_prompts_are_those_of_the_server(renderer: ChatRenderer, target: Path) -> None:
    served = Tokenizer(target)
    for turns in ([USER], [USER, ANSWER, SECOND], [{"role": "system", "content": "Be brief."}, USER]):
        messages = [{key: turn[key] for key in ("role", "content")} for turn in turns]
        assert renderer.prompt(turns) == asyncio.run(served.encode_chat(messages, {}))
    served.close()


def test_a_conversation_is_one_document_with_all_answers_marked(renderer: ChatRenderer) -> None:
    (document,) = renderer.documents([USER, ANSWER, SECOND, ANSWER])
    assert marked(renderer, document) == "Common operations on paths.<|end|>" * 2
    assert document.ids[: len(renderer.prompt([USER]))] == renderer.prompt([USER])
    assert not any(document.answer[: len(renderer.prompt([USER]))]) and document.answer[-1]


def test_a_cut_answer_has_no_end_token(renderer: ChatRenderer) -> None:
    (document,) = renderer.documents([USER, ANSWER | {"finish_reason": "length"}])
    assert marked(renderer, document) == "Common operations on paths."


def test_generated_ids_are_taken_as_they_are(renderer: ChatRenderer) -> None:
    turn = ANSWER | {"prompt_token_ids": [1, 2, 3], "token_ids": [9, 8], "finish_reason": "length"}
    (document,) = renderer.documents([USER, turn])
    assert document.ids == [1, 2, 3, 9, 8] and document.answer == [False] * 3 + [True] * 2


def test_an_end_token_that_was_kept_back_is_added(renderer: ChatRenderer) -> None:
    end = renderer.tokenizer.eos_token_id
    for given in ([9, 8], [9, 8, end]):
        (document,) = renderer.documents([USER, ANSWER | {"prompt_token_ids": [1, 2, 3], "token_ids": given}])
        assert document.ids == [1, 2, 3, 9, 8, end] and document.answer == [False] * 3 + [True] * 3


def test_thoughts_stay_where_they_were_thought(target: Path, tmp_path: Path) -> None:
    """The template drops earlier thoughts, so each answer is a document of its own, and each has its thought."""
    (tmp_path / "thinking.jinja").write_text(THINKING)
    renderer = ChatRenderer(target, tmp_path / "thinking.jinja", read_model_config(target).end_ids)
    first, last = ANSWER | {"reasoning_content": "hmm"}, ANSWER | {"reasoning_content": "well"}
    documents = renderer.documents([USER, first, SECOND, last])
    said = [marked(renderer, document) for document in documents]
    assert said == [f"<think>{thought}</think>Common operations on paths.<|end|>" for thought in ("hmm", "well")]
    assert "hmm" not in renderer.tokenizer.decode(documents[1].ids)


def test_a_template_that_forgets_the_thought_is_passed_over(renderer: ChatRenderer) -> None:
    (document,) = renderer.documents([USER, ANSWER | {"reasoning_content": "hmm"}])
    assert marked(renderer, document) == "<think>\nhmm\n</think>\n\nCommon operations on paths.<|end|>"


def test_a_refusing_template_is_a_value_error(renderer: ChatRenderer) -> None:
    with pytest.raises(ValueError, match="unknown role"):
        renderer.documents([{"role": "tool", "content": "x"}, ANSWER])


def test_the_template_s_own_ids(renderer: ChatRenderer) -> None:
    written = {renderer.tokenizer.decode([token]) for token in renderer.template_ids()}
    assert written == {"<|bos|>", "<|user|>", "<|assistant|>", "<|end|>"}
