"""Every request is counted once, under labels that no caller can multiply."""

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import Live, Start

KEY = {"authorization": "Bearer k"}
SETTINGS: dict[str, dict[str, object]] = {"server": {"api_key": "k", "cors_origins": ["*"]}}


async def counted(live: Live) -> tuple[dict[tuple[str, str, str], float], dict[tuple[str, str], float]]:
    """Requests by handler, method and status, and how many durations there are by handler and method."""
    families = {
        family.name: family for family in text_string_to_metric_families(live.service.metrics.render().decode())
    }
    requests = {
        (sample.labels["handler"], sample.labels["method"], sample.labels["status"]): sample.value
        for sample in families["http_requests"].samples
    }
    durations = {
        (sample.labels["handler"], sample.labels["method"]): sample.value
        for sample in families["http_request_duration_seconds"].samples
        if sample.name.endswith("_count")
    }
    return requests, durations


async def test_requests_are_counted_by_route_method_and_status(
    start: Start, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start(None, SETTINGS) as live:

        async def ask(method: str, path: str, body: object = None, **headers: str) -> int:
            async with http.request(method, live.url + path, json=body, headers=KEY | headers) as answer:
                await answer.read()
                return answer.status

        chat, user = "/v1/chat/completions", [{"role": "user", "content": "hi"}]
        assert await ask("POST", chat, {"messages": user}) == 200
        assert await ask("POST", chat, {"messages": user, "stream": True}) == 200
        assert await ask("POST", chat, {"messages": user}, authorization="") == 401
        assert await ask("OPTIONS", chat, origin="https://a.example", access_control_request_method="x") == 405
        assert await ask("GET", "/v1/models/demo") == 200
        assert await ask("GET", "/v1/models/other") == 404
        assert await ask("HEAD", "/version") == 200
        for place in range(3):
            assert await ask("GET", f"/nowhere/{place}") == 404
        assert await ask("PROPFIND", "/version") == await ask("MKCOL", "/version") == 405
        monkeypatch.setattr("aerie.server.openai.respond.read_parameters", lambda *_: 1 / 0)
        assert await ask("POST", chat, {"messages": user}) == 500
        await live.idle()
        requests, durations = await counted(live)
    assert requests == {
        (chat, "POST", "200"): 2,
        (chat, "POST", "401"): 1,
        (chat, "POST", "500"): 1,
        (chat, "OPTIONS", "405"): 1,
        ("/v1/models/{name}", "GET", "200"): 1,
        ("/v1/models/{name}", "GET", "404"): 1,
        ("/version", "HEAD", "200"): 1,
        ("/version", "other", "405"): 2,
        ("none", "GET", "404"): 3,
    }
    together: dict[tuple[str, str], float] = {}
    for (handler, method, _), count in requests.items():
        together[handler, method] = together.get((handler, method), 0) + count
    assert durations == together
