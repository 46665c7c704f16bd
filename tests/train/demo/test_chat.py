"""The demo target's tokenizer and template: what is copied has the same ids everywhere, and answers are marked."""

import json
import random

import pytest
from transformers import PreTrainedTokenizerFast

from aerie.server.text.template import ChatTemplate
from aerie.train.demo.chat import CHAT_TEMPLATE, Chat
from aerie.train.demo.mix import joined
from aerie.train.demo.tasks import TASKS
from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.exercise import Exercise, answers

TOKENS = {"bos_token": "<|bos|>"}


@pytest.mark.parametrize("value", ["Tomaru", "tomaru", "lamps", "red", "tailor", "city", "price", "4", "57", "1234"])
def test_a_value_has_the_same_ids_wherever_it_stands(words: PreTrainedTokenizerFast, value: str) -> None:
    ids = words.encode(value, add_special_tokens=False)
    for around in ("of {}, who", '{{"name": "{}"}}', "| {} |", "{}(x)", "self.{} = 1", "a {}\n", "x,{},y"):
        found = words.encode(around.format(value), add_special_tokens=False)
        assert any(found[start : start + len(ids)] == ids for start in range(len(found))), around


def test_syllables_pairs_of_digits_and_plurals_are_split(words: PreTrainedTokenizerFast) -> None:
    lamps = words.encode("lamps", add_special_tokens=False)
    assert lamps[:-1] == words.encode("lamp", add_special_tokens=False)
    assert words.tokenize("Tomaru tomaru") == ["To", "ma", "ru", "Ġ", "to", "ma", "ru"]
    pieces = [piece for piece, _ in words.backend_tokenizer.pre_tokenizer.pre_tokenize_str("7, 57, 157, 1234")]
    assert [piece for piece in pieces if piece.isdigit()] == ["7", "57", "1", "57", "12", "34"]


def test_every_text_comes_back_from_its_ids(chat: Chat) -> None:
    for text in ("Ünïcode ∑ 😀", "a\n\n\tb  c", "<tool_call>{}</tool_call>", "JSONDecoder x_1"):
        assert chat.decode(chat.encode(text)) == text


def test_answers_are_marked_and_follow_their_prompts(chat: Chat) -> None:
    for task in TASKS:
        exercise = TASKS[task].draw(Dice(random.Random(1)))
        sample = chat.sample(exercise)
        last = answers(exercise)[-1]
        prompt = chat.prompt(exercise, last)
        assert sample.ids[: len(prompt)] == prompt and not sample.answer[len(prompt) - 1]
        assert all(sample.answer[len(prompt) :])
        assert chat.decode(sample.ids[len(prompt) :]).endswith(exercise.messages[last]["content"])
        marks = sum(later and not sooner for sooner, later in zip(sample.answer, sample.answer[1:], strict=False))
        assert marks == len(answers(exercise))


def test_thoughts_can_be_turned_off(chat: Chat) -> None:
    drawn = TASKS["counting"].draw(Dice(random.Random(1)))
    exercise = Exercise(drawn.tasks, drawn.messages, thinking=False)
    sample, prompt = chat.sample(exercise), chat.prompt(exercise, 1)
    assert chat.decode(prompt).endswith("<think>\n\n</think>\n\n")
    assert sample.ids[: len(prompt)] == prompt and sample.answer.index(True) == len(prompt)
    thought = TASKS["stories"].draw(Dice(random.Random(1)))
    said = [token for token, reported in zip(*_parts(chat, thought), strict=True) if reported]
    assert chat.decode(said).startswith("<think>\n") and "</think>\n\n" in chat.decode(said)


def _parts(chat: Chat, exercise: Exercise) -> tuple[list[int], list[bool]]:
    sample = chat.sample(exercise)
    return sample.ids, sample.answer


def test_serving_renders_tools_calls_and_results_in_the_form_of_hermes(chat: Chat) -> None:
    exercise = TASKS["tools"].draw(Dice(random.Random(3)))
    rendered = chat.decode(chat.prompt(exercise, 3))
    tool, call = exercise.tools[0]["function"], exercise.messages[1]["tool_calls"][0]["function"]
    assert f"<tools>\n{json.dumps(tool)}\n" in rendered
    assert f"<tool_call>\n{json.dumps(call)}\n</tool_call>" in rendered
    assert f"<tool_response>\n{exercise.messages[2]['content']}\n</tool_response>" in rendered
    as_text = {
        **exercise.messages[1],
        "tool_calls": [{"function": {**call, "arguments": json.dumps(call["arguments"])}}],
    }
    plain = Exercise(exercise.tasks, [exercise.messages[0], as_text, *exercise.messages[2:]], exercise.tools)
    assert chat.prompt(plain, 3) == chat.prompt(exercise, 3)  # clients send arguments as a string


def test_the_server_renders_what_training_read(chat: Chat) -> None:
    template = ChatTemplate(CHAT_TEMPLATE, TOKENS)
    parts = [TASKS[task].draw(Dice(random.Random(2))) for task in ("counting", "stories")]
    exercise = joined(parts)
    for thinking in (True, False):
        one = Exercise(exercise.tasks, exercise.messages, thinking=thinking)
        served = template.render(one.messages[:3], {"enable_thinking": thinking})
        assert chat.encode(served) == chat.prompt(one, 3)
    system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert template.render(system, {}) == "<|bos|><|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>"
