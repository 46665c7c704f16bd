"""Pages of other origins: what a browser asks before, and what it lets the page see."""

import aiohttp
import pytest

from tests.server.conftest import Start

ORIGIN = "https://app.example"
ASKED = "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-retry-count,x-stainless-timeout"
"""As the official JavaScript client has the browser ask."""


def preflight(origin: str = ORIGIN, method: str = "POST", **more: str) -> dict[str, str]:
    asked = {"origin": origin, "access-control-request-method": method, "access-control-request-headers": ASKED}
    return asked | {name.replace("_", "-"): value for name, value in more.items()}


@pytest.mark.parametrize("allowed", ["*", ORIGIN])
async def test_any_header_of_an_allowed_origin_passes(start: Start, http: aiohttp.ClientSession, allowed: str) -> None:
    async with start(None, {"server": {"cors_origins": [allowed], "api_key": "k"}}) as live:
        url = f"{live.url}/v1/chat/completions"
        async with http.options(url, headers=preflight(access_control_request_private_network="true")) as answer:
            assert answer.status == 200
            assert answer.headers["access-control-allow-origin"] == allowed
            assert answer.headers["access-control-allow-private-network"] == "true"
            granted = {name.strip() for name in answer.headers["access-control-allow-headers"].split(",")}
        assert set(ASKED.split(",")) <= granted
        async with http.post(url, json={}, headers={"origin": ORIGIN}) as answer:
            assert answer.status == 401
            assert answer.headers["access-control-allow-origin"] == allowed
            shown = answer.headers["access-control-expose-headers"]
        assert {"x-request-id", "retry-after", "x-should-retry"} <= set(shown.split(", "))


async def test_a_refusal_has_the_shape_of_all_errors(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(None, {"server": {"cors_origins": [ORIGIN]}}) as live:
        for asked in (preflight("https://evil.example"), preflight(method="DELETE")):
            async with http.options(f"{live.url}/v1/chat/completions", headers=asked) as answer:
                assert answer.status == 400
                error = (await answer.json())["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert (error["type"], error["code"]) == ("invalid_request_error", "cors_refused")
            assert all(asked[name] in error["message"] for name in ("origin", "access-control-request-method"))
        async with http.get(f"{live.url}/health", headers={"origin": "https://evil.example"}) as answer:
            assert "access-control-allow-origin" not in answer.headers


async def test_cors_is_closed_unless_opened(start: Start, http: aiohttp.ClientSession) -> None:
    async with start() as live:
        async with http.get(f"{live.url}/health", headers={"origin": ORIGIN}) as answer:
            assert "access-control-allow-origin" not in answer.headers
        async with http.options(f"{live.url}/v1/chat/completions", headers=preflight()) as answer:
            assert answer.status == 405
