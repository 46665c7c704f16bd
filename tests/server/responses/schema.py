"""What Open Responses (openresponses.org, 2026-04-24) requires of a response and of its events, as JSON schemas.

Written for these tests from the published reference: the names of the fields, their types, and which are required. The
events of reasoning have the names that OpenAI's clients know (`reasoning_text`).
"""

from typing import Any

import jsonschema

from tests.server.responses.published import check_published

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
COUNT: Json = {"type": "integer", "minimum": 0}
NUMBER: Json = {"type": "number"}
FLAG: Json = {"type": "boolean"}
STATUS: Json = {"enum": ["in_progress", "completed", "incomplete"]}


def thing(**fields: Json) -> Json:
    """An object that has all these fields."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def any_of(*schemas: Json) -> Json:
    return {"anyOf": list(schemas)}


def listed(schema: Json) -> Json:
    return {"type": "array", "items": schema}


def const(value: str) -> Json:
    return {"const": value}


LOGPROB = thing(
    token=TEXT,
    logprob=NUMBER,
    bytes=listed(COUNT),
    top_logprobs=listed(thing(token=TEXT, logprob=NUMBER, bytes=listed(COUNT))),
)
PART = any_of(
    thing(type=const("output_text"), text=TEXT, annotations=listed({}), logprobs=listed(LOGPROB)),
    thing(type=const("reasoning_text"), text=TEXT),
)
ITEM = any_of(
    thing(type=const("message"), id=TEXT, status=STATUS, role=const("assistant"), content=listed(PART)),
    thing(type=const("function_call"), id=TEXT, call_id=TEXT, name=TEXT, arguments=TEXT, status=STATUS),
    thing(type=const("reasoning"), id=TEXT, summary=listed(PART), content=listed(PART)),
)
FUNCTION = thing(
    type=const("function"),
    name=TEXT,
    description=or_null(TEXT),
    parameters=or_null({"type": "object"}),
    strict=or_null(FLAG),
)
FORMAT = any_of(
    thing(type={"enum": ["text", "json_object"]}),
    thing(type=const("json_schema"), name=TEXT, description=or_null(TEXT), schema={"type": "object"}, strict=FLAG),
)
USAGE = thing(
    input_tokens=COUNT,
    output_tokens=COUNT,
    total_tokens=COUNT,
    input_tokens_details=thing(cached_tokens=COUNT),
    output_tokens_details=thing(reasoning_tokens=COUNT),
)
RESPONSE = thing(
    id=TEXT,
    object=const("response"),
    created_at=COUNT,
    completed_at=or_null(COUNT),
    status={"enum": ["completed", "failed", "in_progress", "incomplete"]},
    incomplete_details=or_null(thing(reason=TEXT)),
    model=TEXT,
    previous_response_id=or_null(TEXT),
    instructions=or_null(TEXT),
    output=listed(ITEM),
    error=or_null(thing(code=TEXT, message=TEXT)),
    tools=listed(FUNCTION),
    tool_choice=any_of({"enum": ["none", "auto", "required"]}, thing(type={"enum": ["function", "allowed_tools"]})),
    truncation={"enum": ["auto", "disabled"]},
    parallel_tool_calls=FLAG,
    text=thing(format=FORMAT),
    top_p=NUMBER,
    presence_penalty=NUMBER,
    frequency_penalty=NUMBER,
    top_logprobs=COUNT,
    temperature=NUMBER,
    reasoning=or_null(thing(effort=or_null(TEXT), summary=or_null(TEXT))),
    user=or_null(TEXT),
    usage=or_null(USAGE),
    max_output_tokens=or_null(COUNT),
    max_tool_calls=or_null(COUNT),
    store=FLAG,
    background=FLAG,
    service_tier=TEXT,
    metadata={"type": "object"},
    safety_identifier=or_null(TEXT),
    prompt_cache_key=or_null(TEXT),
)
PIECE: Json = {"item_id": TEXT, "output_index": COUNT}
IN_PART: Json = PIECE | {"content_index": COUNT}
EVENTS: dict[str, Json] = {
    **{
        f"response.{name}": thing(response=RESPONSE)
        for name in ("created", "in_progress", "completed", "incomplete", "failed")
    },
    **{f"response.output_item.{name}": thing(output_index=COUNT, item=ITEM) for name in ("added", "done")},
    **{f"response.content_part.{name}": thing(**IN_PART, part=PART) for name in ("added", "done")},
    "response.output_text.delta": thing(**IN_PART, delta=TEXT, logprobs=listed(LOGPROB)),
    "response.output_text.done": thing(**IN_PART, text=TEXT, logprobs=listed(LOGPROB)),
    "response.reasoning_text.delta": thing(**IN_PART, delta=TEXT),
    "response.reasoning_text.done": thing(**IN_PART, text=TEXT),
    "response.function_call_arguments.delta": thing(**PIECE, delta=TEXT),
    "response.function_call_arguments.done": thing(**PIECE, arguments=TEXT),
}
LAST = ("response.completed", "response.incomplete", "response.failed")


def check_response(response: Json) -> None:
    jsonschema.validate(response, RESPONSE)
    check_published(response)


def check_stream(events: list[Json]) -> Json:
    """Every event is valid, they are numbered, the first and the last are what they must be, what opens is closed.
    Returns the response that ended the stream.
    """
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        jsonschema.validate(event, thing(type=const(event["type"]), sequence_number=COUNT))
        jsonschema.validate(event, EVENTS[event["type"]])
        check_published(event)
    types = [event["type"] for event in events]
    assert types[:2] == ["response.created", "response.in_progress"]
    assert [kind for kind in types if kind in LAST] == types[-1:], "exactly one event ends it, and it is the last"
    last: Json = events[-1]["response"]
    assert types[-1] == f"response.{last['status']}"
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    check_items(events[2:-1], last)
    return last


def check_items(events: list[Json], last: Json) -> None:
    """One item after the other: opened, grown by deltas that its end repeats, closed as the response lists it."""
    items: list[Json] = []
    text, item = "", None
    for event in events:
        kind = event["type"].removeprefix("response.")
        assert event["output_index"] == len(items)
        if kind == "output_item.added":
            assert item is None
            item, text = event["item"], ""
            assert item["status"] == "in_progress" and not item.get("content") and not item.get("arguments")
            continue
        assert item is not None
        assert event.get("item_id", item["id"]) == item["id"]
        if kind.endswith(".delta"):
            text += event["delta"]
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert event["text"] == text
        elif kind == "function_call_arguments.done":
            assert event["arguments"] == text
        elif kind == "content_part.added":
            assert event["part"]["text"] == ""
        elif kind == "content_part.done":
            assert event["part"]["text"] == text
        elif kind == "output_item.done":
            assert event["item"]["id"] == item["id"]
            items.append(event["item"])
            item = None
    if last["status"] == "failed":
        assert last["output"][: len(items)] == items
        assert [one["status"] for one in last["output"][len(items) :]] == (["incomplete"] if item else [])
    else:
        assert item is None and last["output"] == items
