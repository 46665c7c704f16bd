"""The OpenAI API over a real socket, through the official client."""

import asyncio
from typing import Any

import aiohttp
import openai
import pytest

from tests.server.conftest import ANSWER, Live, Start
from tests.server.fake_scheduler import MAX_LENGTH, Script

USER = [{"role": "user", "content": "Say hello"}]


async def test_a_chat_answers_whole(live: Live) -> None:
    answer = await live.client().chat.completions.create(model="demo", messages=USER, seed=7)
    choice = answer.choices[0]
    assert choice.message.content == ANSWER
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "demo"
    assert answer.system_fingerprint.startswith("aerie-")
    request = live.fake.seen[0]
    assert request.prompt == live.ids("<|bos|><|user|>Say hello<|end|><|assistant|>")
    assert request.sampling.seed == 7
    assert request.sampling.max_tokens == MAX_LENGTH - len(request.prompt)
    assert request.deadline is not None and request.queue_deadline is not None


async def test_the_fingerprint_tells_which_kernels_served(live: Live) -> None:
    """Across sets of kernels the last bits of a logit may differ."""
    seen = []
    for kernel_set in ("x86-64-v3-1-2", "x86-64-v4-1-2", "x86-64-v3-1-2"):
        live.service.ready().report["kernel_set"] = kernel_set
        answer = await live.client().chat.completions.create(model="demo", messages=USER, seed=7)
        seen.append(answer.system_fingerprint)
    assert seen[0] == seen[2] != seen[1]


async def test_usage_tells_of_cache_and_speculation(live: Live) -> None:
    answer = await live.client().chat.completions.create(model="demo", messages=USER)
    usage = answer.usage
    expected = len(live.ids(ANSWER)) + 1
    assert usage.completion_tokens == expected
    assert usage.prompt_tokens == len(live.fake.seen[0].prompt)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == 4
    steps = -(-expected // 3)
    speculation = usage.model_extra["speculation"]
    assert speculation["steps"] == steps
    assert speculation["accepted"] == expected - steps
    assert speculation["drafted"] == 4 * steps
    assert speculation["acceptance_length"] == pytest.approx(expected / steps, abs=1e-3)
    assert sum(speculation["accepted_per_position"]) == speculation["accepted"]


async def test_a_stream_says_the_same(live: Live) -> None:
    stream = await live.client().chat.completions.create(
        model="demo", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == ANSWER
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "stop"
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-2])
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(live.ids(ANSWER)) + 1
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_stream_is_well_formed_on_the_wire(live: Live, http: aiohttp.ClientSession) -> None:
    body = {"messages": USER, "stream": True}
    async with http.post(f"{live.url}/v1/chat/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        text = await answer.text()
    frames = text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    assert all(frame.startswith("data: ") for frame in frames[:-1])
    assert "usage" not in frames[0]


async def test_continuous_usage_counts_up(live: Live) -> None:
    """In every chunk, those of roles included, which have no token yet."""
    live.fake.turn_seconds = 0.02
    options = {"include_usage": True, "continuous_usage_stats": True}
    client = live.client()
    asked = {"model": "demo", "stream": True, "stream_options": options, "max_tokens": 100}
    chat = await client.chat.completions.create(messages=USER, n=2, **asked)
    usages = [chunk.usage async for chunk in chat]
    assert [usage.completion_tokens for usage in usages[:2]] == [0, 0]
    _check_counts(usages, live, choices=2)
    text = await client.completions.create(prompt="Hello", **asked)
    _check_counts([chunk.usage async for chunk in text], live, choices=1)


def _check_counts(usages: list[Any], live: Live, *, choices: int) -> None:
    assert {usage.prompt_tokens for usage in usages} == {len(live.fake.seen[-1].prompt)}
    assert all(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens for usage in usages)
    counts = [usage.completion_tokens for usage in usages]
    assert counts == sorted(counts) and len(counts) > 2
    assert counts[-1] == choices * (len(live.ids(ANSWER)) + 1)


async def test_several_choices_share_an_id(live: Live) -> None:
    answer = await live.client().chat.completions.create(model="demo", messages=USER, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.message.content for choice in answer.choices] == [ANSWER] * 3
    assert sorted(request.choice for request in live.fake.seen) == [0, 1, 2]
    assert len({request.sampling.seed for request in live.fake.seen}) == 1
    assert answer.usage.completion_tokens == 3 * (len(live.ids(ANSWER)) + 1)
    assert answer.usage.prompt_tokens == len(live.fake.seen[0].prompt)


async def test_several_choices_stream(live: Live) -> None:
    stream = await live.client().chat.completions.create(model="demo", messages=USER, n=2, stream=True)
    texts = ["", ""]
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [ANSWER, ANSWER]


async def test_chat_logprobs_are_of_every_token(live: Live) -> None:
    answer = await live.client().chat.completions.create(model="demo", messages=USER, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert len(content) == len(live.ids(ANSWER)) + 1
    assert b"".join(bytes(entry.bytes) for entry in content[:-1]).decode() == ANSWER
    assert all(len(entry.top_logprobs) == 2 and entry.logprob == -0.5 for entry in content)
    assert content[0].top_logprobs[1].logprob == -9999.0
    assert live.fake.seen[0].sampling.logprobs == 2


async def test_streamed_logprobs_are_the_same(live: Live) -> None:
    client = live.client()
    whole = await client.chat.completions.create(model="demo", messages=USER, logprobs=True, top_logprobs=1)
    stream = await client.chat.completions.create(
        model="demo", messages=USER, logprobs=True, top_logprobs=1, stream=True
    )
    entries = []
    async for chunk in stream:
        if chunk.choices[0].logprobs is not None:
            entries += chunk.choices[0].logprobs.content
    assert entries == whole.choices[0].logprobs.content


async def test_completions_take_text_and_ids(live: Live) -> None:
    client = live.client()
    ids = live.ids("Hello")
    for prompt, sent in [("Hello", [ids]), (ids, [ids]), (["Hello", "world"], None), ([ids, ids], [ids, ids])]:
        live.fake.seen.clear()
        answer = await client.completions.create(model="demo", prompt=prompt, max_tokens=400)
        assert [choice.text for choice in answer.choices] == [ANSWER] * len(answer.choices)
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        seen = [request.prompt for request in live.fake.seen]
        assert seen == (sent or [ids, live.ids("world")])
        assert answer.usage.prompt_tokens == sum(map(len, seen))
        assert answer.object == "text_completion"


async def test_completions_stop_after_sixteen_tokens_by_default(start: Start, abbc: Script) -> None:
    async with start(abbc) as live:
        answer = await live.client().completions.create(model="demo", prompt="Hello")
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 16


async def test_completion_logprobs_have_offsets(live: Live) -> None:
    answer = await live.client().completions.create(model="demo", prompt="Hello", logprobs=1, max_tokens=400)
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset)
    assert logprobs.text_offset[0] == 0
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    for token, offset in zip(logprobs.tokens[:-1], logprobs.text_offset, strict=False):
        assert "\ufffd" in token or ANSWER.startswith(token, offset)


async def test_models(live: Live) -> None:
    models = await live.client().models.list()
    assert [model.id for model in models.data] == ["demo"]
    assert models.data[0].model_extra["max_model_len"] == MAX_LENGTH
    assert (await live.client().models.retrieve("demo")).id == "demo"
    with pytest.raises(openai.NotFoundError) as error:
        await live.client().models.retrieve("other")
    assert (error.value.code, error.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError) as error:
        await live.client().completions.create(model="other", prompt="x")
    assert (error.value.code, error.value.param) == ("model_not_found", "model")
    assert (await live.client().completions.create(model="", prompt="x")).model == "demo"


async def test_a_byte_order_mark_is_passed_over(live: Live, http: aiohttp.ClientSession) -> None:
    body = b'\xef\xbb\xbf{"prompt": "x"}'
    for path in ("/v1/completions", "/tokenize"):
        async with http.post(live.url + path, data=body, headers={"content-type": "application/json"}) as answer:
            assert answer.status == 200


def test_the_sync_client(start: Start) -> None:
    async def main() -> None:
        async with start() as live:
            await asyncio.to_thread(ask, live.url)

    def ask(url: str) -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
            answer = client.chat.completions.create(model="demo", messages=USER)
            assert answer.choices[0].message.content == ANSWER
            stream = client.chat.completions.create(model="demo", messages=USER, stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == ANSWER

    asyncio.run(main())
