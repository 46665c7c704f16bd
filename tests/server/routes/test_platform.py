"""The paths that a managed platform chooses: its health check, and predictions in its shape."""

from typing import Any

import aiohttp
import pytest

from tests.server.conftest import ANSWER, Live, Start

ROUTES: dict[str, dict[str, object]] = {"server": {"health_route": "/alive", "predict_route": "/predict"}}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


async def post(http: aiohttp.ClientSession, live: Live, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    async with http.post(f"{live.url}/predict", json=body) as answer:
        return answer.status, await answer.json()


async def test_a_prediction_is_answered_as_its_own_route_would(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(settings=ROUTES) as live:
        status, chat = await post(http, live, CHAT)
        assert status == 200 and chat["choices"][0]["message"]["content"] == ANSWER
        status, completion = await post(http, live, {"prompt": "hi"})
        assert status == 200 and completion["choices"][0]["text"] == ANSWER


async def test_instances_share_parameters_and_are_answered_in_order(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(settings=ROUTES) as live:
        body = {"instances": [CHAT, {"prompt": "hi"}], "parameters": {"max_tokens": 2, "stream": True}}
        status, reported = await post(http, live, body)
        assert status == 200, reported
        first, second = reported["predictions"]
        assert (first["object"], second["object"]) == ("chat.completion", "text_completion")
        assert [one["usage"]["completion_tokens"] for one in (first, second)] == [2, 2]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"instances": []}, "instances"),
        ({"instances": [CHAT] * 17}, "at most 16 are allowed"),
        ({"instances": [CHAT, CHAT | {"temperature": "hot"}]}, "instances[1].temperature"),
        ({"instances": [CHAT], "parameters": {"max_tokens": "two"}}, "max_tokens"),
    ],
)
async def test_what_is_wrong_is_named(
    start: Start, http: aiohttp.ClientSession, body: dict[str, Any], said: str
) -> None:
    async with start(settings=ROUTES) as live:
        status, reported = await post(http, live, body)
        assert status in (400, 422) and said in str(reported["error"]), reported


async def test_health_is_readiness(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(settings=ROUTES) as live:
        async with http.get(f"{live.url}/alive") as answer:
            assert answer.status == 200
        live.service.admission.draining = True
        async with http.get(f"{live.url}/alive") as answer:
            assert answer.status == 503
    async with start() as live, http.get(f"{live.url}/alive") as answer:
        assert answer.status == 404, "nobody asked for it"
