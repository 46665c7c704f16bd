"""How answers end: stop strings, stop ids, callers that leave; and Aerie's own additions to them."""

import asyncio

from tests.patience import come
from tests.server.conftest import ANSWER, Live, Start, silent, then_silent
from tests.server.fake_scheduler import Script

USER = [{"role": "user", "content": "Say hello"}]


async def test_stop_strings_end_the_answer_and_abort(start: Start, live: Live) -> None:
    a, b, c = (live.ids(letter)[0] for letter in "abc")
    async with start(then_silent([[a, b], [b, c]])) as forever:
        stop = await forever.client().completions.create(model="demo", prompt="x", max_tokens=300, stop=["bb", "c"])
        assert stop.choices[0].text == "a"
        assert stop.choices[0].finish_reason == "stop"
        assert stop.choices[0].model_extra["stop_reason"] == "bb"
        assert stop.usage.completion_tokens == 3
        assert stop.usage.prompt_tokens_details.cached_tokens == 0
        await forever.idle()
        assert forever.fake.aborted == [forever.fake.seen[0].id]
    kept = await live.client().completions.create(
        model="demo", prompt="x", max_tokens=400, stop="fox", extra_body={"include_stop_str_in_output": True}
    )
    assert kept.choices[0].text == ANSWER[: ANSWER.index("fox") + 3]


async def test_stop_ids_are_cut_from_the_text(live: Live) -> None:
    stop = live.ids(ANSWER)[4]
    answer = await live.client().chat.completions.create(
        model="demo", messages=USER, extra_body={"stop_token_ids": [stop]}
    )
    assert answer.choices[0].message.content == live.tokenizer.decode(live.ids(ANSWER)[:4])
    assert answer.choices[0].model_extra["stop_reason"] == stop
    assert answer.usage.completion_tokens == 5


async def test_the_models_end_has_no_stop_reason_and_is_not_aborted(live: Live) -> None:
    answer = await live.client().chat.completions.create(model="demo", messages=USER)
    assert (answer.choices[0].finish_reason, answer.choices[0].model_extra["stop_reason"]) == ("stop", None)
    await live.idle()
    assert not live.fake.aborted


async def test_min_tokens_guard_stop_strings(start: Start, abbc: Script) -> None:
    async with start(abbc) as live:
        answer = await live.client().completions.create(
            model="demo", prompt="x", max_tokens=50, stop="bb", extra_body={"min_tokens": 6, "ignore_eos": True}
        )
        assert answer.choices[0].text == "abbcabbca"  # the first "bb" to start after six tokens
        assert live.fake.seen[0].sampling.min_tokens == 6


async def test_leaving_a_stream_aborts_all_choices(start: Start) -> None:
    async with start(then_silent([[20, 21]])) as live:
        stream = await live.client().completions.create(
            model="demo", prompt="x", max_tokens=500, n=3, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            break
        await stream.close()
        await live.idle()
        assert sorted(live.fake.aborted) == sorted(request.id for request in live.fake.seen)
        reported = live.service.metrics.render().decode()
        assert 'aerie:request_success_total{finished_reason="abort",model_name="demo"} 3.0' in reported


async def test_leaving_before_an_answer_aborts(start: Start) -> None:
    for stream in (False, True):
        async with start(silent) as live:
            asking = asyncio.create_task(
                live.client().chat.completions.create(model="demo", messages=USER, n=2, stream=stream)
            )
            await come(lambda fake=live.fake: len(fake.seen) == 2, "the scheduler is not asked")
            asking.cancel()
            await live.idle()
            assert sorted(live.fake.aborted) == sorted(request.id for request in live.fake.seen)


async def test_ids_and_drafted_flags_on_demand(live: Live) -> None:
    extra = {"return_token_ids": True, "speculation": {"enabled": True, "max_draft_tokens": 3, "spans": True}}
    answer = await live.client().chat.completions.create(model="demo", messages=USER, extra_body=extra)
    part = answer.choices[0].model_extra
    assert part["token_ids"] == [*live.ids(ANSWER), 1]
    assert part["drafted"][:3] == [True, True, False]
    assert "".join(text for text, _ in part["spans"]) == ANSWER
    assert answer.model_extra["prompt_token_ids"] == live.fake.seen[0].prompt
    assert live.fake.seen[0].speculation.max_draft_tokens == 3


async def test_streamed_spans_join_to_the_text(live: Live) -> None:
    stream = await live.client().chat.completions.create(
        model="demo", messages=USER, stream=True, stop="jumps", extra_body={"speculation": {"spans": True}}
    )
    text, spans = "", ""
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        spans += "".join(piece for piece, _ in chunk.choices[0].model_extra.get("spans", []))
    assert text == spans == ANSWER[: ANSWER.index("jumps")]
