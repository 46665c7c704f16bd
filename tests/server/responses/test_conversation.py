"""Items become the chat that the model's template knows."""

from typing import Any

import pytest

from aerie.contracts.errors import BadRequest
from aerie.server.responses.bodies import ResponseBody
from aerie.server.responses.conversation import read


def chat(**fields: Any) -> Any:
    return read(ResponseBody.model_validate({"input": "hi"} | fields))[0]


def messages(*items: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return [message.as_data() for message in chat(input=list(items), **fields).messages]


def call(id: str, name: str = "look") -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": name, "arguments": '{"a": 1}'}


def called(id: str, name: str = "look") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": {"a": 1}}}


def test_texts_and_roles() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages(
        {"role": "developer", "content": "be kind"},
        {"type": "message", "role": "user", "content": parts, "id": "msg_1", "status": "completed"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        instructions="be brief",
    ) == [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "cno"},
    ]


def test_a_turn_holds_reasoning_text_and_calls() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    found = messages(
        {"role": "user", "content": "hi"},
        thought,
        {"role": "assistant", "content": "wait"},
        call("c1"),
        call("c2", "feel"),
        {"type": "function_call_output", "call_id": "c1", "output": "red"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "soft"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "dropped"}], "encrypted_content": None},
        call("c3"),
    )
    assert found == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "wait",
            "reasoning": "hm",
            "reasoning_content": "hm",
            "tool_calls": [called("c1"), called("c2", "feel")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "red"},
        {"role": "tool", "tool_call_id": "c2", "content": "soft"},
        {"role": "assistant", "content": "", "tool_calls": [called("c3")]},
    ]


def test_fields_get_the_chat_s_names() -> None:
    schema = {"type": "object"}
    format = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    body = chat(
        max_output_tokens=9, top_p=0.5, seed=3, top_logprobs=2, text={"format": format}, stop=["x"], stream=True
    )
    assert (body.max_completion_tokens, body.top_p, body.seed, body.stop) == (9, 0.5, 3, ["x"])
    assert (body.logprobs, body.top_logprobs, body.stream) == (True, 2, True)
    given = body.model_dump(by_alias=True, exclude_unset=True)
    assert given["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": True},
    }
    assert chat(include=["message.output_text.logprobs"]).logprobs
    assert not chat(include=["reasoning.encrypted_content"]).logprobs


def test_tools_are_nested_and_others_left_out() -> None:
    tools = [
        {"type": "web_search"},
        {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True},
        {"type": "function", "name": "feel", "description": "touch"},
    ]
    body, conversation = read(
        ResponseBody.model_validate(
            {"input": "hi", "tools": tools, "tool_choice": {"type": "function", "name": "look"}}
        )
    )
    given = body.model_dump(exclude_unset=True)
    assert [tool["function"]["name"] for tool in given["tools"]] == ["look", "feel"]
    assert given["tools"][0]["function"]["strict"] is True
    assert given["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert conversation.ignored == ["web_search"]
    error = BadRequest("tools[1].function.name is bad, tool_choice.function.name too", param="tools[1].function.name")
    renamed = conversation.renamed(error)
    assert (renamed.message, renamed.param) == ("tools[2].name is bad, tool_choice.name too", "tools[2].name")


def test_allowed_tools_are_nested_too() -> None:
    tools = [{"type": "function", "name": name} for name in ("look", "feel")]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "feel"}]}
    assert chat(tools=tools, tool_choice=choice).model_dump(exclude_unset=True)["tool_choice"] == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "feel"}}]},
    }


@pytest.mark.parametrize(
    ("chat_s", "ours"),
    [
        ("messages", "input"),
        ("messages[0].content", "instructions"),
        ("messages[1]", "input[0]"),
        ("messages[2].tool_calls[0].function.arguments", "input[1]"),
        ("max_completion_tokens", "max_output_tokens"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("response_format", "text.format"),
        ("top_k", "top_k"),
        (None, None),
    ],
)
def test_errors_get_the_caller_s_names(chat_s: str | None, ours: str | None) -> None:
    items = [{"role": "user", "content": "hi"}, call("c1")]
    _, conversation = read(ResponseBody.model_validate({"input": items, "instructions": "x"}))
    error = conversation.renamed(BadRequest("wrong", param=chat_s, code="c"))
    assert (error.param, error.code) == (ours, "c")
