"""What a responses body cannot ask for is a 400 that names the caller's own field, and nothing is queued."""

from typing import Any

import aiohttp
import pytest

from tests.server.conftest import Live
from tests.server.fake_scheduler import MAX_LENGTH

BAD: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id", ["keeps no responses", "input"]),
    ({"conversation": "conv_1"}, "conversation", ["keeps no responses"]),
    ({"background": True}, "background", ["keeps no responses"]),
    ({"prompt": {"id": "p"}}, "prompt", ["keeps no prompts"]),
    ({"conversation": "c", "background": True}, "conversation", ["conversation is", "background is"]),
    ({"n": 2}, "n", ["one answer"]),
    ({"max_tokens": 5}, "max_tokens", ["max_output_tokens"]),
    ({"messages": [{"role": "user", "content": "hi"}]}, "messages", ["input"]),
    ({"response_format": {"type": "json_object"}}, "response_format", ["text.format"]),
    ({"functions": [{"name": "f"}]}, "functions", ["tools"]),
    ({"input": None}, "input", ["a string or a list of items"]),
    ({"input": 5}, "input", ["5; it must be a string or a list of items"]),
    ({"input": ["hi"]}, "input[0]", ["a string of 2 characters; it must be an item"]),
    ({"input": [{"role": "user"}]}, "input[0].content", ["missing"]),
    ({"input": [{"role": "pirate", "content": "x"}]}, "input[0].role", ['"pirate"', '"developer"']),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]", ['"item_reference"', "function_call_output"]),
    ({"input": [{"type": "web_search_call"}]}, "input[0]", ['"web_search_call"']),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0].type",
        ['"input_text"'],
    ),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id", ["missing"]),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output", ["missing"]),
    ({"max_output_tokens": 0}, "max_output_tokens", ["0", "at least 1"]),
    ({"max_output_tokens": 10**6}, "max_output_tokens", [str(10**6), str(MAX_LENGTH), "max_output_tokens"]),
    ({"top_logprobs": 21}, "top_logprobs", ["21", "20"]),
    ({"temperature": -1}, "temperature", ["-1", "at least 0"]),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", ['"xml"']),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", ["missing"]),
    ({"text": {"format": {"type": "json_schema", "schema": 5}}}, "text.format.schema", ["5; it must be a JSON schema"]),
    (
        {"text": {"format": {"type": "json_schema", "schema": {"type": "array", "uniqueItems": True}}}},
        "text.format.schema",
        ["uniqueItems"],
    ),
    ({"text": {"verbosity": "low"}}, "text.verbosity", ["instructions"]),
    ({"text": {"verbosity": "endless"}}, "text.verbosity", ['"endless"']),
    ({"text": "json"}, "text", ['"json"', "an object"]),
    ({"tools": "all"}, "tools", ['"all"', "a list"]),
    ({"tools": [{"name": "f"}]}, "tools[0].type", ["missing"]),
    ({"tool_choice": "sometimes"}, "tool_choice", ['"sometimes"']),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice.type", ["function", "allowed_tools"]),
    ({"metadata": {str(i): "x" for i in range(17)}}, "metadata", ["17", "16"]),
    ({"metadata": {"a": 5}}, "metadata.a", ["a string"]),
    ({"input": "x" * 10**6}, "input", ["maximum context length"]),
    ({"input": [{"role": "user", "content": "word " * 900}]}, "input", ["maximum context length"]),
]


@pytest.mark.parametrize(("fields", "param", "named"), BAD, ids=lambda value: str(value)[:50])
async def test_bad_fields_are_named(
    live: Live, http: aiohttp.ClientSession, fields: dict[str, Any], param: str, named: list[str]
) -> None:
    async with http.post(f"{live.url}/v1/responses", json={"input": "hi"} | fields) as answer:
        error = (await answer.json())["error"]
    assert answer.status == 400, error
    assert error["param"] == param, error
    assert all(word in error["message"] for word in named), error["message"]
    assert len(error["message"]) < 600
    assert live.fake.seen == []
    assert live.service.admission.taken == 0


async def test_what_asks_for_nothing_is_taken(live: Live, http: aiohttp.ClientSession) -> None:
    nothing: dict[str, Any] = dict.fromkeys(
        ("previous_response_id", "conversation", "prompt", "messages", "max_tokens", "tools", "text", "include")
    )
    nothing |= {"background": False, "n": 1, "truncation": "auto", "service_tier": "auto", "unheard_of": 1}
    nothing |= {"text": {"verbosity": "medium"}}
    nothing |= {"include": ["reasoning.encrypted_content"], "stream_options": {"include_obfuscation": False}}
    async with http.post(f"{live.url}/v1/responses", json={"input": "hi"} | nothing) as answer:
        response = await answer.json()
    assert answer.status == 200, response
    assert (response["truncation"], response["service_tier"]) == ("disabled", "default"), "the truth"
