"""What the server says of itself."""

import asyncio
import json
import logging
import threading
from collections.abc import Iterator

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from aerie.contracts.messages import Failed, Generate
from aerie.server.text.tokenizer import Tokenizer
from tests.patience import come
from tests.server.conftest import ANSWER, Live, Start, answering, silent
from tests.server.fake_scheduler import MAX_LENGTH, VOCABULARY, Said, pausing

USER = [{"role": "user", "content": "hi"}]


async def test_health_ready_version_config(live: Live, http: aiohttp.ClientSession) -> None:
    for path, expected in (("/health", {"status": "ok"}), ("/ready", {"status": "ready"})):
        async with http.get(live.url + path) as answer:
            assert (answer.status, await answer.json()) == (200, expected)
    async with http.get(f"{live.url}/version") as answer:
        assert (await answer.json())["version"] == live.service.version
    async with http.get(f"{live.url}/config") as answer:
        config = await answer.json()
    assert config["engine"] == {"kv_tokens": 4096, "target_bytes": 1000}
    assert config["config"]["model"]["served_name"] == "demo"


async def test_before_the_engine_is_ready(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(ready=False) as live:
        for method, path in (("get", "/health"), ("get", "/ready"), ("get", "/v1/models"), ("get", "/config")):
            async with http.request(method, live.url + path) as answer:
                assert answer.status == 503
                assert (await answer.json())["error"]["code"] == "starting"
                assert int(answer.headers["retry-after"]) >= 1
        async with http.post(f"{live.url}/v1/chat/completions", json={"messages": USER}) as answer:
            assert answer.status == 503
        async with http.get(f"{live.url}/metrics") as answer:
            assert answer.status == 200


async def test_who_is_told_that_the_engine_is_dead_finds_the_server_unwell(
    start: Start, http: aiohttp.ClientSession
) -> None:
    def dying(request: Generate) -> Iterator[Said]:
        yield Failed(id="", code="engine_dead", message="the lane is gone")

    async with start(dying) as live:
        status, data, _ = await _post(http, live, {"messages": USER})
        assert (status, data["error"]["code"]) == (500, "engine_dead")
        for path in ("/health", "/ready"):
            async with http.get(live.url + path) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (503, "engine_dead")


async def test_metrics_have_both_names(start: Start, tokenizer: Tokenizer, http: aiohttp.ClientSession) -> None:
    begun = threading.Event()
    usage = None
    async with start(pausing(answering(tokenizer), begun)) as live:
        asked = {"model": "demo", "messages": USER, "stream": True, "stream_options": {"include_usage": True}}
        async for chunk in await live.client().chat.completions.create(**asked):
            begun.set()  # a reader that comes late would find all runs joined to one
            usage = chunk.usage
        await live.idle()
        async with http.get(f"{live.url}/metrics") as scraped:
            assert scraped.headers["content-type"].startswith("text/plain")
            families = {family.name: family for family in text_string_to_metric_families(await scraped.text())}
    samples = {
        (sample.name, sample.labels.get("position") or sample.labels.get("finished_reason")): sample.value
        for family in families.values()
        for sample in family.samples
    }
    for prefix in ("aerie", "vllm"):
        assert samples[f"{prefix}:spec_decode_num_drafts_total", None] == 10
        assert samples[f"{prefix}:spec_decode_num_draft_tokens_total", None] == 40
        assert samples[f"{prefix}:spec_decode_num_accepted_tokens_total", None] == 25
        per_position = [samples[f"{prefix}:spec_decode_num_accepted_tokens_per_pos_total", str(d)] for d in range(3)]
        assert per_position == [10, 9, 6]
        assert samples[f"{prefix}:kv_cache_usage_perc", None] == pytest.approx(0.1)
        assert samples[f"{prefix}:prefix_cache_queries_total", None] == 100
        assert samples[f"{prefix}:num_preemptions_total", None] == 1
        assert samples[f"{prefix}:prompt_tokens_total", None] == usage.prompt_tokens
        assert samples[f"{prefix}:generation_tokens_total", None] == usage.completion_tokens
        assert samples[f"{prefix}:request_success_total", "stop"] == 1
        for name in (
            "time_to_first_token_seconds",
            "e2e_request_latency_seconds",
            "request_time_per_output_token_seconds",
            "request_queue_time_seconds",
            "request_prefill_time_seconds",
        ):
            assert samples[f"{prefix}:{name}_count", None] == 1, name
        assert samples[f"{prefix}:inter_token_latency_seconds_count", None] >= 1
        assert {f"{prefix}:num_requests_running", f"{prefix}:num_requests_waiting"} <= set(families)
    edges = [s.labels["le"] for s in families["aerie:inter_token_latency_seconds"].samples if s.name.endswith("bucket")]
    assert edges[0] == "0.0005"


async def test_sizes_of_requests_and_steps(live: Live, http: aiohttp.ClientSession) -> None:
    client, expected = live.client(), len(live.ids(ANSWER)) + 1
    for choices in (1, 3):
        await client.chat.completions.create(model="demo", messages=USER, n=choices, max_tokens=100)
    both = ["Hello", "world"]
    await client.completions.create(model="demo", prompt=both, n=2, max_tokens=3)
    async with http.get(f"{live.url}/metrics") as scraped:
        families = text_string_to_metric_families(await scraped.text())
        samples = {sample.name: sample for family in families for sample in family.samples}
    reported = {
        name: (samples[f"vllm:{name}_count"].value, samples[f"vllm:{name}_sum"].value)
        for name in (
            "request_prompt_tokens",
            "request_prefill_kv_computed_tokens",
            "request_generation_tokens",
            "request_max_num_generation_tokens",
            "request_params_max_tokens",
            "request_params_n",
            "iteration_tokens_total",
        )
    }
    prompts = [len(request.prompt) for request in live.fake.seen]
    assert reported == {
        "request_prompt_tokens": (8, sum(prompts)),
        "request_prefill_kv_computed_tokens": (8, sum(max(length - 4, 1) for length in prompts)),
        "request_generation_tokens": (8, 4 * expected + 4 * 3),
        "request_max_num_generation_tokens": (4, 2 * expected + 2 * 3),
        "request_params_max_tokens": (8, 4 * 100 + 4 * 3),
        "request_params_n": (4, 1 + 3 + 2 + 2),
        "iteration_tokens_total": (20, 60 + 35),
    }
    info = samples["vllm:cache_config_info"]
    assert info.labels | {"model_name": ""} == {
        "model_name": "",
        "block_size": "16",
        "num_gpu_blocks": "50",
        "enable_prefix_caching": "True",
    }


async def test_a_full_queue_says_when_to_come_back(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(silent, {"scheduler": {"max_running": 1, "max_waiting": 1}}) as live:
        body = {"messages": USER}
        waiting = [asyncio.create_task(_post(http, live, body)) for _ in range(2)]
        await come(lambda: len(live.fake.seen) == 2, "the scheduler is not asked")
        for _ in range(5):
            status, data, headers = await _post(http, live, body)
            assert (status, data["error"]["code"]) == (503, "overloaded")
            assert int(headers["retry-after"]) >= 1
        status, data, _ = await _post(http, live, body | {"n": 3})
        assert (status, data["error"]["param"]) == (400, "n")
        async with http.get(f"{live.url}/metrics") as scraped:
            assert 'vllm:admission_rejections_total{model_name="demo",reason="queue_full"} 5.0' in await scraped.text()
        for task in waiting:
            task.cancel()
        await live.idle()


async def test_places_do_not_leak_in_a_burst(live: Live, http: aiohttp.ClientSession) -> None:
    results = await asyncio.gather(*(_post(http, live, {"messages": USER}) for _ in range(400)))
    assert {status for status, _, _ in results} <= {200, 503}
    await live.idle()


async def test_one_line_per_request_without_text(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "aerie.requests"):
        await live.client().chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "very private"}], extra_headers={"x-request-id": "r1"}
        )
    lines = [json.loads(record.message) for record in caplog.records if record.name == "aerie.requests"]
    assert len(lines) == 1
    assert lines[0]["request"] == "r1"
    assert lines[0]["outcome"] == "finished"
    assert lines[0]["finish"] == ["stop"]
    assert lines[0]["acceptance_length"] > 1
    assert "private" not in caplog.text


async def test_tokenize_and_back(live: Live, http: aiohttp.ClientSession) -> None:
    for prefix in ("", "/v1"):
        body = {"prompt": "Hello 🦅", "return_token_strs": True}
        async with http.post(f"{live.url}{prefix}/tokenize", json=body) as answer:
            data = await answer.json()
        assert data["tokens"] == live.ids("Hello 🦅")
        assert data["count"] == len(data["tokens"]) == len(data["token_strs"])
        assert data["max_model_len"] == MAX_LENGTH
        async with http.post(f"{live.url}{prefix}/detokenize", json={"tokens": data["tokens"]}) as answer:
            assert (await answer.json())["prompt"] == "Hello 🦅"
    async with http.post(f"{live.url}/tokenize", json={"messages": USER}) as answer:
        assert (await answer.json())["tokens"] == live.ids("<|bos|><|user|>hi<|end|><|assistant|>")
    for body in ({}, {"prompt": "x", "messages": USER}):
        async with http.post(f"{live.url}/tokenize", json=body) as answer:
            assert answer.status == 400
    async with http.post(f"{live.url}/detokenize", json={"tokens": [VOCABULARY]}) as answer:
        assert answer.status == 400


async def test_openapi_describes_bodies_and_errors(live: Live, http: aiohttp.ClientSession) -> None:
    async with http.get(f"{live.url}/openapi.json") as answer:
        document = await answer.json()
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("ChatBody")
    assert set(chat["responses"]) == {"200", "4XX", "5XX"}
    assert {"/v1/completions", "/v1/models", "/tokenize", "/health", "/metrics", "/config"} <= set(document["paths"])
    properties = document["components"]["schemas"]["ChatBody"]["properties"]
    assert properties["top_logprobs"]["anyOf"][0]["maximum"] == 20


async def _post(http: aiohttp.ClientSession, live: Live, body: dict[str, object]):  # type: ignore[no-untyped-def]
    async with http.post(f"{live.url}/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.json(), answer.headers
