"""The official client asks a live server for answers that match a schema, an expression, choices or a grammar."""

import json
import re
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest
from openai import OpenAI

from tests.e2e.conftest import QUESTION


class Report(pydantic.BaseModel):
    module: str = pydantic.Field(max_length=20)
    lines: int = pydantic.Field(ge=0, le=9999)
    kind: Literal["function", "class"]


LIMITED = Report.model_json_schema()
AT_ONCE = {"chat_template_kwargs": {"enable_thinking": False}}
"""A model that may think first would write what it likes before its grammar begins."""


def chat(client: OpenAI, **fields: Any) -> Any:
    given = {"model": "aerie-demo", "messages": QUESTION, "max_tokens": 80} | fields
    return client.chat.completions.create(**given | {"extra_body": AT_ONCE | given.get("extra_body", {})})


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_parse_gives_an_object(drafting: OpenAI, temperature: float) -> None:
    parsed = [
        drafting.chat.completions.parse(
            model="aerie-demo",
            messages=QUESTION,
            response_format=Report,
            temperature=temperature,
            seed=5,
            extra_body=AT_ONCE | {"speculation": {"enabled": enabled}},
        )
        for enabled in (True, False)
    ]
    assert all(isinstance(one.choices[0].message.parsed, Report) for one in parsed)
    assert len({one.choices[0].message.content for one in parsed}) == 1
    assert len({one.usage.completion_tokens for one in parsed}) == 1
    drafted, plain = (one.usage.speculation["drafted"] for one in parsed)
    assert drafted and not plain


def test_a_stream_is_the_same_text(client: OpenAI) -> None:
    fields = {"response_format": {"type": "json_object"}, "seed": 3, "temperature": 0.9, "max_tokens": 40}
    whole = chat(client, **fields).choices[0].message.content
    stream = chat(client, stream=True, **fields)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole
    assert whole.startswith("{")


def test_expressions_choices_and_grammars(client: OpenAI) -> None:
    asked = {
        "guided_regex": ("[A-Z][a-z]{2,8}!", r"[A-Z][a-z]{2,8}!"),
        "guided_choice": (["left", "right or wrong"], "left|right or wrong"),
        "guided_grammar": ('start: ("ab" | "c")+ "."', r"(ab|c)+\."),
    }
    for field, (value, expected) in asked.items():
        answer = chat(client, temperature=2.0, seed=8, extra_body={field: value, "top_k": 50}).choices[0]
        assert answer.finish_reason == "length" or re.fullmatch(expected, answer.message.content)
        assert answer.message.content


def test_several_choices_and_neighbours_without_grammars(client: OpenAI) -> None:
    free = chat(client, temperature=0.0, max_tokens=24).choices[0].message.content
    schema = {"type": "json_schema", "json_schema": {"name": "report", "schema": LIMITED}}
    many = chat(client, n=4, temperature=1.0, seed=1, response_format=schema)
    for choice in many.choices:
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content), LIMITED)
    assert len({choice.message.content for choice in many.choices}) > 1
    assert chat(client, temperature=0.0, max_tokens=24).choices[0].message.content == free


def test_log_probabilities_stay_the_target_s(client: OpenAI) -> None:
    answer = chat(client, temperature=0.0, logprobs=True, top_logprobs=2, extra_body={"guided_choice": ["{{{"]})
    first = answer.choices[0].logprobs.content[0]
    assert first.logprob < first.top_logprobs[0].logprob, "the forced token is not the likeliest of all"


def test_what_cannot_be_built_is_a_400_with_the_field(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, extra_body={"guided_json": {"type": "array", "uniqueItems": True}})
    assert refused.value.param == "guided_json" and "uniqueItems" in refused.value.message


def test_a_large_schema_is_answered_beside_a_stream(client: OpenAI) -> None:
    large = {"enum": [f"value number {n:05}" for n in range(2500)]}
    assert 50_000 < len(json.dumps(large)) < 65_536
    stream = chat(client, stream=True, temperature=0.7, seed=2, max_tokens=60)
    answer = chat(client, temperature=1.0, extra_body={"guided_json": large})
    assert json.loads(answer.choices[0].message.content) in large["enum"]
    assert sum(1 for _ in stream) > 1
