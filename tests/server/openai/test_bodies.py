"""However much is wrong in a body, little of it is looked at: one caller's nonsense must not hold the others up."""

import threading
from typing import Any

import aiohttp
import pytest
from pydantic import ValidationError

from aerie.server.openai.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from aerie.server.openai.body import MAX_FIELDS, MAX_ITEMS, Body
from aerie.server.responses.bodies import ResponseBody
from aerie.server.routes.platform import PredictBody
from aerie.server.text.tokenizer import INLINE_CHARACTERS
from tests.server.conftest import Live

MANY = 50_000
USER = [{"role": "user", "content": "hi"}]
FIELDS = {f"k{order}": 1 for order in range(MANY)}
WRONG: list[tuple[type[Body] | type[PredictBody], dict[str, Any]]] = [
    (ChatBody, {"messages": [1] * MANY}),
    (ChatBody, {"messages": [{"role": "user", "content": [{"type": "image"}] * MANY}]}),
    (ChatBody, {"messages": USER, "stop": [1] * MANY}),
    (ChatBody, {"messages": USER, "stop_token_ids": [-1] * MANY}),
    (ChatBody, {"messages": USER, "speculation": FIELDS}),
    (ChatBody, {"messages": USER, "chat_template_kwargs": {key: [] for key in FIELDS}}),
    (CompletionBody, {"prompt": [-1] * MANY}),
    (CompletionBody, {"prompt": [[-1]] * MANY}),
    (CompletionBody, {"prompt": [[-1] * MANY]}),
    (CompletionBody, {"prompt": ["x", *[1] * MANY]}),
    (TokenizeBody, {"messages": [1] * MANY}),
    (DetokenizeBody, {"tokens": ["x"] * MANY}),
    (PredictBody, {"instances": [1] * MANY}),
    (ResponseBody, {"input": [1] * MANY}),
    (ResponseBody, {"input": [{"role": "user", "content": [{"type": "input_image"}] * MANY}]}),
    (ResponseBody, {"input": "x", "tools": [1] * MANY}),
    (ResponseBody, {"input": "x", "metadata": {key: [] for key in FIELDS}}),
]
TOO_MANY: list[tuple[type[Body] | type[PredictBody], dict[str, Any], int, int]] = [
    (ChatBody, {"messages": USER * MANY}, MANY, MAX_ITEMS),
    (ChatBody, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * MANY}]}, MANY, MAX_ITEMS),
    (ChatBody, {"messages": USER, **FIELDS}, MANY + 1, MAX_FIELDS),
    (ChatBody, {"messages": [USER[0] | FIELDS]}, MANY + 2, MAX_FIELDS),
    (ChatBody, {"messages": USER, "chat_template_kwargs": FIELDS}, MANY, MAX_FIELDS),
    (CompletionBody, {"prompt": ["x"] * MANY}, MANY, MAX_ITEMS),
    (CompletionBody, {"prompt": [[1]] * MANY}, MANY, MAX_ITEMS),
    (PredictBody, {"instances": [{}] * MANY}, MANY, MAX_ITEMS),
    (ResponseBody, {"input": USER * MANY}, MANY, MAX_ITEMS),
    (ResponseBody, {"input": "x", "tools": [{"type": "function"}] * MANY}, MANY, MAX_ITEMS),
    (ResponseBody, {"input": "x", "tools": [{"type": "function"} | FIELDS]}, MANY + 1, MAX_FIELDS),
]


@pytest.mark.parametrize(("body", "data"), WRONG, ids=lambda value: str(value)[:40])
def test_a_list_is_given_up_at_its_first_wrong_item(body: type[Body], data: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as error:
        body.model_validate(data)
    assert error.value.error_count() <= 5


@pytest.mark.parametrize(("body", "data", "given", "most"), TOO_MANY, ids=lambda value: str(value)[:40])
def test_objects_and_lists_of_them_are_bounded(body: type[Body], data: dict[str, Any], given: int, most: int) -> None:
    with pytest.raises(ValidationError) as error:
        body.model_validate(data)
    assert any(str(given) in one["msg"] and str(most) in one["msg"] for one in error.value.errors())


def test_token_ids_are_as_many_as_they_are() -> None:
    assert CompletionBody.model_validate({"prompt": [1] * MANY}).prompt == [1] * MANY
    assert DetokenizeBody.model_validate({"tokens": [1] * MANY}).tokens == [1] * MANY


async def test_large_nonsense_is_told_in_few_words(live: Live, http: aiohttp.ClientSession) -> None:
    for data in ({"messages": [1] * MANY}, {"messages": "x" * MANY}, {"messages": FIELDS}, FIELDS):
        async with http.post(f"{live.url}/v1/chat/completions", json=data) as answer:
            assert answer.status == 400
            assert 20 < len((await answer.json())["error"]["message"]) < 1000


async def test_long_ids_are_decoded_beside_the_loop(
    live: Live, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, threads = live.tokenizer.decode, []

    def noted(ids: list[int], *, skip_special: bool) -> str:
        threads.append(threading.current_thread())
        return decode(ids, skip_special=skip_special)

    monkeypatch.setattr(live.tokenizer, "decode", noted)
    for text in ("Hello ", "Hello " * INLINE_CHARACTERS):
        async with http.post(f"{live.url}/detokenize", json={"tokens": live.ids(text)}) as answer:
            assert (await answer.json())["prompt"] == text
    assert [thread is threading.main_thread() for thread in threads] == [True, False]
