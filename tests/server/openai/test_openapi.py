"""The OpenAPI document says all that the server does: routes, limits, keys, and answers as they really are."""

import copy
import json
from typing import Any

import aiohttp
import jsonschema
import pytest

from tests.server.conftest import Live, Start

USER = [{"role": "user", "content": "hi"}]
CHAT, COMPLETE, RESPOND = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ALL = {"return_token_ids": True, "speculation": {"spans": True, "trees": True}}
PLATFORM: dict[str, object] = {"health_route": "/alive", "predict_route": "/predict"}


async def document(live: Live, http: aiohttp.ClientSession, **headers: str) -> dict[str, Any]:
    async with http.get(f"{live.url}/openapi.json", headers=headers) as answer:
        assert answer.status == 200
        found: dict[str, Any] = await answer.json()
        return found


def response(document: dict[str, Any], method: str, path: str, kind: str = "application/json") -> dict[str, Any]:
    """The schema of a good answer, with its definitions, and with no field allowed that it does not name."""
    document = copy.deepcopy(document)
    for schema in document["components"]["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    schema = document["paths"][path][method]["responses"]["200"]["content"][kind]["schema"]
    return {**schema, "components": document["components"]}


async def test_every_route_is_there_and_every_schema_holds(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(None, {"server": PLATFORM}) as live:
        reported = await document(live, http)
        for path in (
            "/",
            "/v1/tokenize",
            "/v1/detokenize",
            "/v1/models/{name}",
            "/metrics",
            "/alive",
            "/predict",
            CHAT,
            RESPOND,
        ):
            assert path in reported["paths"], path
        for path in sorted(reported["paths"]):
            if "get" in reported["paths"][path] and "{" not in path:
                async with http.get(live.url + path) as answer:
                    assert answer.status == 200
                    assert answer.content_type in reported["paths"][path]["get"]["responses"]["200"]["content"], path
                    if answer.content_type == "application/json":
                        jsonschema.validate(await answer.json(), response(reported, "get", path))
    for schema in reported["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    references = json.dumps(reported).split('"#/components/schemas/')[1:]
    assert {one.partition('"')[0] for one in references} <= reported["components"]["schemas"].keys()
    ids = [operation["operationId"] for methods in reported["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("fields", [{}, ALL, {"n": 2, "stop": "o"}], ids=["plain", "all", "choices"])
async def test_answers_are_as_the_document_says(
    live: Live, http: aiohttp.ClientSession, fields: dict[str, Any]
) -> None:
    reported = await document(live, http)
    usage = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": bool(fields)}}
    logprobs = {CHAT: {"logprobs": True, "top_logprobs": 2}, COMPLETE: {"logprobs": 2}, RESPOND: {"top_logprobs": 2}}
    bodies = {CHAT: {"messages": USER}, COMPLETE: {"prompt": "x", "max_tokens": 20}, RESPOND: {"input": "hi"}}
    for path, body in bodies.items():
        if path == RESPOND:
            fields = {name: value for name, value in fields.items() if name != "n"}
        for more in ({}, logprobs[path]):
            async with http.post(live.url + path, json=body | fields | more) as answer:
                jsonschema.validate(await answer.json(), response(reported, "post", path))
            async with http.post(live.url + path, json=body | fields | more | usage) as answer:
                events = [line.rpartition("data: ")[2] for line in (await answer.text()).split("\n\n")]
            for event in events[:-2]:
                jsonschema.validate(json.loads(event), response(reported, "post", path, "text/event-stream"))
    for path, sent in (("/tokenize", {"prompt": "x", "return_token_strs": True}), ("/v1/detokenize", {"tokens": [9]})):
        async with http.post(live.url + path, json=sent) as answer:
            jsonschema.validate(await answer.json(), response(reported, "post", path))


async def test_limits_are_those_of_this_server_and_whole(start: Start, http: aiohttp.ClientSession) -> None:
    limits = {"max_choices": 5, "temperature_max": 1.5, "max_stop_length": 9}
    async with start(None, {"limits": limits}) as live:
        reported = await document(live, http)
    for body in ("ChatBody", "CompletionBody", "ResponseBody"):
        schema = {"$ref": f"#/components/schemas/{body}", "components": reported["components"]}
        good: dict[str, Any] = {"messages": USER, "prompt": "x", "input": "x"}
        for field, edge, beyond in (
            ("n", 5, 6),
            ("temperature", 1.5, 1.6),
            ("seed", 2**63 - 1, 2**63),
            ("seed", -(2**63), -(2**63) - 1),
            ("stop", "a" * 9, "a" * 10),
            ("stop", ["a" * 9], [""]),
            ("speculation", {"max_draft_tokens": 63}, {"max_draft_tokens": 64}),
        ):
            if field == "n" and body == "ResponseBody":
                continue
            jsonschema.validate(good | {field: edge}, schema)
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(good | {field: beyond}, schema)
        seed = reported["components"]["schemas"][body]["properties"]["seed"]["anyOf"][0]
        assert (seed["type"], seed["minimum"], seed["maximum"]) == ("integer", -(2**63), 2**63 - 1)
        assert isinstance(seed["maximum"], int)


async def test_a_key_is_asked_for_where_the_document_says_so(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(None, {"server": {"api_key": "k", **PLATFORM}}) as live:
        reported = await document(live, http, authorization="Bearer k")
        scheme = reported["components"]["securitySchemes"]["key"]
        assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
        for path, methods in reported["paths"].items():
            for method, operation in methods.items():
                async with http.request(method, live.url + path) as answer:
                    asked = answer.status == 401
                assert asked == bool(operation.get("security", reported["security"])), path
    async with start() as live:
        reported = await document(live, http)
        assert "security" not in reported and "securitySchemes" not in reported["components"]
