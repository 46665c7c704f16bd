"""Ids, keys, headers: what holds for every request, and the shape of errors nobody planned."""

import asyncio
import json
from typing import Any

import aiohttp
import openai
import pytest

from tests.patience import PATIENCE
from tests.server.conftest import Live, Start

USER = [{"role": "user", "content": "hi"}]


async def test_request_ids_come_back(live: Live, http: aiohttp.ClientSession) -> None:
    for path in ("/health", "/nowhere", "/v1/models"):
        async with http.get(live.url + path, headers={"x-request-id": "my-id.1:2"}) as answer:
            assert answer.headers["x-request-id"] == "my-id.1:2"
    async with http.post(f"{live.url}/v1/chat/completions", json={"messages": USER, "stream": True}) as answer:
        made = answer.headers["x-request-id"]
        text = await answer.text()
    assert f'"id":"chatcmpl-{made}"' in text


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "é", "a;b"])
async def test_odd_request_ids_are_replaced(live: Live, http: aiohttp.ClientSession, given: str) -> None:
    async with http.get(f"{live.url}/health", headers={"x-request-id": given}) as answer:
        made = answer.headers["x-request-id"]
    assert made != given and len(made) == 32


async def test_one_id_may_be_used_by_many(live: Live) -> None:
    headers = {"x-request-id": "same"}
    client = live.client()
    answers = await asyncio.gather(
        *(client.chat.completions.create(model="demo", messages=USER, extra_headers=headers) for _ in range(5))
    )
    assert {answer.id for answer in answers} == {"chatcmpl-same"}
    assert len({request.id for request in live.fake.seen}) == 5


async def test_a_key_is_asked_for_everywhere_but_where_it_is_not(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(None, {"server": {"api_key": "sesame"}}) as live:
        for path in ("/health", "/ready", "/metrics", "/version", "/", "/playground/page.js"):
            async with http.get(live.url + path) as answer:
                assert answer.status == 200, path
        paths = ("/v1/models", "/config", "/openapi.json", "/nowhere", "//health", "/health/", "/playground")
        for path in paths:
            for header in ({}, {"authorization": "Bearer wrong"}, {"authorization": "sesame"}, {"host": "x/health"}):
                async with http.get(live.url + path, headers=header) as answer:
                    assert answer.status == 401, path
                    assert (await answer.json())["error"]["code"] == "invalid_api_key"
                    assert answer.headers["www-authenticate"] == "Bearer"
        async with http.post(f"{live.url}/tokenize", json={"prompt": "x"}) as answer:
            assert answer.status == 401
        with pytest.raises(openai.AuthenticationError):
            await live.client().models.list()
        assert (await live.client(api_key="sesame").models.list()).data[0].id == "demo"
        async with http.get(f"{live.url}/config", headers={"authorization": "bearer sesame"}) as answer:
            assert "sesame" not in await answer.text()


async def test_unknown_routes_and_methods(live: Live, http: aiohttp.ClientSession) -> None:
    for path in ("/playground/../app.py", "/v1/nothing", "/docs", "/health/"):
        async with http.get(live.url + path, allow_redirects=False) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["type"], error["code"]) == (404, "not_found_error", "unknown_route")
    async with http.get(f"{live.url}/v1/chat/completions") as answer:
        assert answer.status == 405
        assert answer.headers["allow"] == "POST"
        assert (await answer.json())["error"]["code"] == "method_not_allowed"


async def test_head_is_get_without_the_body(live: Live, http: aiohttp.ClientSession) -> None:
    for path, status in (("/health", 200), ("/v1/models", 200), ("/", 200), ("/nothing", 404), ("/tokenize", 405)):
        async with http.get(live.url + path) as whole, http.head(live.url + path) as head:
            assert head.status == whole.status == status
            assert head.headers["content-length"] == whole.headers["content-length"]
            assert await head.read() == b""


async def test_a_bug_is_a_nested_500(
    live: Live, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("aerie.server.openai.respond.read_parameters", broken)
    headers = {"x-request-id": "find-me"}
    async with http.post(f"{live.url}/v1/chat/completions", json={"messages": USER}, headers=headers) as answer:
        text = await answer.text()
        assert answer.status == 500
        assert answer.headers["x-request-id"] == "find-me"
    assert json.loads(text)["error"]["type"] == "server_error"
    assert "find-me" in text and "secret" not in text


async def test_missing_and_doubled_prefixes_get_a_hint(live: Live, http: aiohttp.ClientSession) -> None:
    meant = {
        "/chat/completions": "/v1/chat/completions",
        "/v1/v1/completions": "/v1/completions",
        "/models/demo": "/v1/models/demo",
        "/v1/health": "/health",
        "/v1/models/": "/v1/models",
    }
    for path, other in meant.items():
        async with http.get(live.url + path) as answer:
            assert answer.status == 404
            assert f"did you mean {other}?" in (await answer.json())["error"]["message"]
    async with http.get(f"{live.url}/nothing") as answer:
        assert "did you mean" not in (await answer.json())["error"]["message"]


@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP, identity"])
async def test_a_compressed_body_is_refused_by_its_name(live: Live, http: aiohttp.ClientSession, encoding: str) -> None:
    headers = {"content-encoding": encoding, "content-type": "application/json"}
    async with http.post(f"{live.url}/v1/chat/completions", data=b"\x1f\x8b nonsense", headers=headers) as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (415, "unsupported_encoding")
        assert encoding in error["message"]
        assert answer.headers["accept-encoding"] == "identity"
    headers["content-encoding"] = "identity"
    async with http.post(f"{live.url}/tokenize", data=b'{"prompt": "x"}', headers=headers) as answer:
        assert answer.status == 200


async def test_heads_are_bounded(live: Live) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    heads = [b"GET /health HTTP/1.1\r\nx: " + b"a" * 100_000, b"GET /" + b"a" * 100_000, b"nonsense\r\n\r\n"]
    for head in [*heads, heads[0] + b"\r\n\r\n"]:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head)
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        assert answer.startswith(b"HTTP/1.1 400")
        assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["code"] == "malformed_request"
        writer.close()


@pytest.mark.parametrize("cut", [0, 60, -9])
async def test_a_body_that_comes_with_an_offer_to_upgrade_is_read(live: Live, cut: int) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    body = b'{"prompt": "upgrade: h2c"}'
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    head += b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\nContent-Type: application/json\r\n"
    data = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    reader, writer = await asyncio.open_connection(host, int(port))
    for _ in range(2):
        writer.write(data[:cut])
        await asyncio.sleep(0.05)
        writer.write(data[cut:])
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        assert answer.startswith(b"HTTP/1.1 200")
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        assert json.loads(await reader.readexactly(length))["tokens"] == live.ids("upgrade: h2c")
    writer.close()


async def test_many_requests_on_one_connection(live: Live) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    padding = b"a" * 3000
    for _ in range(40):  # more head bytes altogether than one request may have
        writer.write(b"GET /version HTTP/1.1\r\nhost: x\r\nx: " + padding + b"\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        assert head.startswith(b"HTTP/1.1 200")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
    writer.close()
