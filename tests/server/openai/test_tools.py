"""Tools and reasoning through the real server: what the client gets, what the scheduler gets, what is refused."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from aerie.contracts.config import parse_config
from aerie.server.app import create_app
from aerie.server.text.tokenizer import Tokenizer
from tests.server.conftest import Live, _served, answering, text_then_silent
from tests.server.fake_scheduler import Script
from tests.server.openai.test_fuzz import post as over_asgi
from tests.server.openai.tool_models import (
    SCHEMAS,
    TEMPLATE,
    THINKING,
    TIME,
    WEATHER,
    any_allowed,
    call_text,
    tool,
)

ASK = [{"role": "user", "content": "How is it?"}]
TOOLS = [WEATHER, TIME]


@contextlib.asynccontextmanager
async def serving(
    folder: Path, tmp_path: Path, script: Any, template: str = TEMPLATE, **server: Any
) -> AsyncIterator[Live]:
    """A server with this chat template. `script` is made from the tokenizer, or is the text of every answer."""
    file = tmp_path / "template.jinja"
    file.write_text(template)
    tokenizer = Tokenizer(folder, file)
    config = parse_config({"model": {"path": str(folder), "served_name": "demo"}, "server": {"port": 1, **server}})
    config = config.model_copy(update={"server": config.server.model_copy(update={"port": 0})})
    made: Script = answering(tokenizer, script, run=7) if isinstance(script, str) else script(tokenizer)
    async with _served(config, tokenizer, made, True) as live:
        yield live


async def post(live: Live, http: aiohttp.ClientSession, **fields: Any) -> tuple[int, dict[str, Any]]:
    async with http.post(f"{live.url}/v1/chat/completions", json={"messages": ASK, **fields}) as answer:
        return answer.status, await answer.json()


FAMILIES = ["hermes", "qwen3_coder", "llama3_json", "pythonic", "mistral", "mistral_named"]


@pytest.mark.parametrize("family", FAMILIES)
async def test_forced_calls_parse_and_validate_whatever_the_model_writes(
    folder: Path, tmp_path: Path, family: str
) -> None:
    named = {"type": "function", "function": {"name": "get_time"}}
    async with serving(folder, tmp_path, any_allowed, tool_call_parser=family) as live:
        for turn in range(6):
            choice = named if turn % 3 == 0 else "required"
            answer = await live.client().chat.completions.create(
                model="demo",
                messages=ASK,
                tools=TOOLS,
                tool_choice=choice,
                max_tokens=400,
                parallel_tool_calls=turn % 3 != 1,
            )
            said = answer.choices[0]
            assert said.message.tool_calls and said.message.content is None
            if said.finish_reason == "length":  # a string without an end
                continue
            assert said.finish_reason == "tool_calls"
            for call in said.message.tool_calls:
                jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
            if turn % 3 < 2:
                assert len(said.message.tool_calls) == 1
            if turn % 3 == 0:
                assert said.message.tool_calls[0].function.name == "get_time"
        assert live.service.metrics.render().decode().count("tool_parse_failures_total") == 3


@pytest.mark.parametrize("family", FAMILIES)
async def test_strict_calls_validate_if_the_model_calls(folder: Path, tmp_path: Path, family: str) -> None:
    strict = [{**one, "function": {**one["function"], "strict": True}} for one in TOOLS]
    async with serving(folder, tmp_path, any_allowed, tool_call_parser=family) as live:
        for _ in range(4):
            answer = await live.client().chat.completions.create(
                model="demo", messages=ASK, tools=strict, max_tokens=60
            )
            grammar = live.fake.seen[-1].grammar
            assert grammar is not None and "call" in grammar.text
            for call in answer.choices[0].message.tool_calls or []:
                if answer.choices[0].finish_reason == "tool_calls":
                    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


async def test_a_tool_loop_of_three_turns_ends(folder: Path, tmp_path: Path) -> None:
    """The model calls, gets results, calls again, gets a result, and answers in text."""

    def script(tokenizer: Tokenizer) -> Script:
        forced, text = any_allowed(tokenizer), answering(tokenizer, "It is warm.")
        return lambda request: (forced if request.grammar is not None else text)(request)

    async with serving(folder, tmp_path, script) as live:
        client, messages = live.client(), list(ASK)
        for turn, choice in enumerate(("required", {"type": "function", "function": {"name": "get_weather"}}, "none")):
            stream = client.chat.completions.stream(
                model="demo",
                messages=messages,
                tools=TOOLS,
                tool_choice=choice,
                seed=turn,
                max_tokens=200,
                parallel_tool_calls=False,
            )
            async with stream as events:
                answer = await events.get_final_completion()
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if choice == "none":
                break
            for call in message.tool_calls or []:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": '{"degrees": 21}'})
        assert (message.content, message.tool_calls, answer.choices[0].finish_reason) == ("It is warm.", None, "stop")
        prompt = live.tokenizer.decode(live.fake.seen[-1].prompt, skip_special=False)
        assert prompt.count("<tool_call>") >= 2 and prompt.count('{"degrees": 21}') >= 2
        assert "get_weather get_time" not in prompt  # tool_choice none shows no tools


async def test_streamed_deltas_are_the_whole_answer(folder: Path, tmp_path: Path) -> None:
    said = "<think>\nHm, Oslo.\n</think>\n\nLet me see.\n" + call_text("get_weather", {"city": "Oslo", "days": 2})
    said += "\n" + call_text("get_time", {"zone": "<tool_call>", "exact": True})
    async with serving(folder, tmp_path, said, THINKING.replace("'<think>\\n' if", "'' if")) as live:
        client = live.client()
        asked = {"model": "demo", "messages": ASK, "tools": TOOLS}
        whole = (await client.chat.completions.create(**asked)).choices[0]
        message = whole.message
        assert (message.content, whole.finish_reason) == ("Let me see.", "tool_calls")
        assert message.model_extra["reasoning"] == message.model_extra["reasoning_content"] == "Hm, Oslo."
        calls = [(one.function.name, json.loads(one.function.arguments)) for one in message.tool_calls]
        assert calls == [
            ("get_weather", {"city": "Oslo", "days": 2}),
            ("get_time", {"zone": "<tool_call>", "exact": True}),
        ]
        joined: dict[str, str] = {"content": "", "reasoning": "", "reasoning_content": ""}
        made: list[dict[str, str]] = []
        reasons = []
        stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        async for chunk in stream:
            for choice in chunk.choices:
                reasons.append(choice.finish_reason)
                data = choice.delta.model_dump(exclude_unset=True)
                for name in joined:
                    joined[name] += data.get(name) or ""
                for call in data.get("tool_calls") or []:
                    assert "content" not in data
                    if call["index"] == len(made):
                        made.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
                        assert call["function"]["arguments"] == "" and call["type"] == "function"
                    else:
                        assert call["index"] == len(made) - 1 and "name" not in call["function"]
                        made[-1]["arguments"] += call["function"]["arguments"]
            usage = chunk.usage
        assert joined == {"content": "Let me see.", "reasoning": "Hm, Oslo.", "reasoning_content": "Hm, Oslo."}
        assert [(one["name"], json.loads(one["arguments"])) for one in made] == calls
        assert reasons[-1] == "tool_calls" and set(reasons[:-1]) == {None}
        thought = said[: said.index("</think>") + len("</think>")]
        assert usage.completion_tokens_details.reasoning_tokens == pytest.approx(
            len(live.ids(thought)) - len(live.ids("<think")), abs=2
        )


async def test_the_prompt_says_where_the_answer_begins(folder: Path, tmp_path: Path) -> None:
    said = "Hm.\n</think>\n\nYes."
    async with serving(folder, tmp_path, said, THINKING) as live:
        client = live.client()
        opened = (await client.chat.completions.create(model="demo", messages=ASK)).choices[0].message
        assert (opened.content, opened.model_extra["reasoning"]) == ("Yes.", "Hm.")
        for off in ({"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
            closed = (await client.chat.completions.create(model="demo", messages=ASK, extra_body=off)).choices[0]
            assert (closed.message.content, closed.message.model_extra) == (said, {})


@pytest.mark.parametrize("form", ["schema", "tools"])
async def test_a_grammar_begins_behind_the_reasoning(folder: Path, tmp_path: Path, form: str) -> None:
    schema = WEATHER["function"]["parameters"]
    wanted = {"tools": TOOLS, "tool_choice": "required"} if form == "tools" else {}
    if form == "schema":
        wanted = {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": schema}}}
    async with serving(folder, tmp_path, any_allowed, THINKING) as live:
        for thinks in (True, False):
            answer = await live.client().chat.completions.create(
                model="demo",
                messages=ASK,
                extra_body={"chat_template_kwargs": {"enable_thinking": thinks}},
                max_tokens=400,
                **wanted,
            )
            grammar = live.fake.seen[-1].grammar
            assert grammar is not None and (grammar.behind, grammar.opens) == ("</think>" if thinks else "", "")
            message = answer.choices[0].message
            if answer.choices[0].finish_reason != "length":
                text = message.tool_calls[0].function.arguments if form == "tools" else message.content
                name = message.tool_calls[0].function.name if form == "tools" else "get_weather"
                jsonschema.validate(json.loads(text), SCHEMAS[name])


async def test_tools_beside_a_schema_give_calls_or_the_schema(folder: Path, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with serving(folder, tmp_path, any_allowed) as live:
        kinds = set()
        for _ in range(8):
            answer = await live.client().chat.completions.create(
                model="demo",
                messages=ASK,
                tools=[WEATHER],
                response_format=wanted,
                max_tokens=400,
            )
            said = answer.choices[0]
            kinds.add(said.finish_reason)
            if said.finish_reason == "stop":
                jsonschema.validate(json.loads(said.message.content), schema)
        assert {"stop", "tool_calls"} <= kinds


async def test_an_answer_without_parallel_calls_ends_behind_its_first(folder: Path, tmp_path: Path) -> None:
    first, second = call_text("get_time", {}), call_text("get_weather", {})

    async with serving(folder, tmp_path, text_then_silent(first + "\n" + second)) as live:
        answer = await live.client().chat.completions.create(
            model="demo", messages=ASK, tools=TOOLS, parallel_tool_calls=False
        )
        assert answer.choices[0].finish_reason == "tool_calls" and len(answer.choices[0].message.tool_calls) == 1
        await live.idle()
        assert live.fake.aborted == [live.fake.seen[0].id]


async def test_a_cut_call_is_given_as_it_is(folder: Path, tmp_path: Path) -> None:
    async with serving(folder, tmp_path, call_text("get_time", {"zone": "Europe/Oslo " * 20})) as live:
        said = (
            await live.client().chat.completions.create(model="demo", messages=ASK, tools=TOOLS, max_tokens=60)
        ).choices[0]
        assert said.finish_reason == "length"
        assert said.message.tool_calls[0].function.arguments.startswith('{"zone": "Europe')


@pytest.mark.parametrize("ending", ["dies", "leaves"])
async def test_a_stream_that_ends_inside_a_call_says_so_once(
    folder: Path, tmp_path: Path, http: aiohttp.ClientSession, ending: str
) -> None:
    said = call_text("get_weather", {"city": "Oslo", "days": 2}).partition('"Oslo"')[0]

    async with serving(folder, tmp_path, text_then_silent(said)) as live:
        body = {"messages": ASK, "tools": TOOLS, "stream": True}
        async with http.post(f"{live.url}/v1/chat/completions", json=body) as answer:
            text = (await answer.content.readuntil(b'"{\\"city')).decode()
            if ending == "dies":
                await asyncio.to_thread(live.fake.kill)
                text += (await answer.content.read()).decode()
        if ending == "leaves":
            await live.idle()
            assert live.fake.aborted == [live.fake.seen[0].id]
            return
        chunks = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
        assert chunks[-1] == "[DONE]" and text.count('"error"') == 1
        assert json.loads(chunks[-2])["error"]["code"] == "engine_dead"
        reasons = [choice["finish_reason"] for chunk in chunks[:-2] for choice in json.loads(chunk)["choices"]]
        assert set(reasons) == {None}, "a call that is not whole is not given as one"


async def test_failures_are_counted(folder: Path, tmp_path: Path) -> None:
    async with serving(folder, tmp_path, "<tool_call>oh</tool_call>") as live:
        said = await live.client().chat.completions.create(model="demo", messages=ASK, tools=TOOLS)
        assert said.choices[0].message.content == "<tool_call>oh</tool_call>"
        await live.idle()
        assert 'aerie:tool_parse_failures_total{model_name="demo"} 1.0' in live.service.metrics.render().decode()


FUNCTION = {"type": "function", "function": {"name": "get_time"}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools[0].function.name"),
    ({"tools": [TIME, TIME]}, "tools[1].function.name"),
    ({"tools": [tool("x")] * 129}, "tools"),
    (
        {"tools": [{"type": "function", "function": {"name": "x", "parameters": {"type": "array"}}}]},
        "tools[0].function.parameters.type",
    ),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": FUNCTION}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name"),
    (
        {
            "tools": TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "x"}}]},
            },
        },
        "tool_choice.allowed_tools.tools",
    ),
    ({"tools": TOOLS, "guided_regex": "a+"}, "guided_regex"),
    ({"tools": TOOLS, "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
    ({"tools": [tool("x", y={"type": "string", "pattern": "("})], "tool_choice": "required"}, "tools"),
    ({"store": True}, "store"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"service_tier": "quick"}, "service_tier"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"functions": [{"name": "x"}]}, "functions"),
]


async def test_what_cannot_be_is_refused_by_name(folder: Path, tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with serving(folder, tmp_path, "x") as live:
        for fields, param in REFUSED:
            status, data = await post(live, http, **fields)
            assert (status, data.get("error", {}).get("param")) == (400, param), (fields, data)
        assert not live.fake.seen


async def test_a_template_without_tools_is_named(live: Live, http: aiohttp.ClientSession) -> None:
    status, data = await post(live, http, tools=TOOLS)
    assert (status, data["error"]["param"], data["error"]["code"]) == (400, "tools", "unsupported_field")
    assert "template" in data["error"]["message"]
    assert (await post(live, http, tools=TOOLS, tool_choice="none"))[0] == 200
    assert (
        await post(
            live,
            http,
            store=False,
            metadata={"a": "b"},
            service_tier="auto",
            prompt_cache_key="k",
            safety_identifier="s",
            user="u",
            parallel_tool_calls=True,
        )
    )[0] == 200


async def test_allowed_tools_are_those_that_the_template_shows(folder: Path, tmp_path: Path) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [FUNCTION]}}
    async with serving(folder, tmp_path, "Yes.") as live:
        await live.client().chat.completions.create(model="demo", messages=ASK, tools=TOOLS, tool_choice=allowed)
        prompt = live.tokenizer.decode(live.fake.seen[-1].prompt, skip_special=False)
        assert "get_time" in prompt and "get_weather" not in prompt


async def test_a_template_for_tools_serves_chats_with_tools(folder: Path, tmp_path: Path) -> None:
    """As models have it that list several templates: their markup is found in the one for tools."""
    listed = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "<tool_call>" + TEMPLATE}]
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": listed}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer(tmp_path)
    config = parse_config({"model": {"path": str(tmp_path), "served_name": "demo"}, "server": {"port": 1}})
    config = config.model_copy(update={"server": config.server.model_copy(update={"port": 0})})
    async with _served(config, tokenizer, answering(tokenizer, call_text("get_time", {})), True) as live:
        create = live.client().chat.completions.create
        assert (await create(model="demo", messages=ASK, tools=TOOLS)).choices[0].message.tool_calls
        assert "get_weather get_time" in live.tokenizer.decode(live.fake.seen[-1].prompt)
        assert (await create(model="demo", messages=ASK)).choices[0].message.tool_calls is None
        assert live.tokenizer.decode(live.fake.seen[-1].prompt) == "plain"


async def test_tokens_are_counted_as_the_chat_has_them(
    folder: Path, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    """Ids of calls that the template wants shorter, too."""
    call = {"id": "call_0123456789", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    said = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}]
    said.append({"role": "tool", "tool_call_id": call["id"], "content": "noon"})
    short = (
        TEMPLATE
        + "{% for m in messages if m.tool_call_id %}{% if m.tool_call_id | length != 9 %}"
        + ("{{ raise_exception('ids have nine letters') }}{% endif %}{{ m.tool_call_id }}{% endfor %}")
    )
    async with serving(folder, tmp_path, "x", short, tool_call_parser="mistral") as live:
        assert (await post(live, http, messages=said, tools=TOOLS, max_tokens=1))[0] == 200
        async with http.post(f"{live.url}/tokenize", json={"messages": said, "tools": TOOLS}) as answer:
            counted = await answer.json()
        assert answer.status == 200 and counted["tokens"] == live.fake.seen[-1].prompt, counted


words = some.sampled_from(["type", "object", "string", "properties", "required", "enum", "$ref", "#/$defs/a", "a"])
anything = some.recursive(
    some.none() | some.booleans() | some.integers(-9, 9) | words,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)
names = some.sampled_from(["a", "b", "", "x y", "é"])
parameters = some.dictionaries(words, anything, max_size=4) | some.fixed_dictionaries(
    {"properties": some.dictionaries(words, some.dictionaries(words, anything, max_size=3), max_size=3)},
    optional={"required": some.lists(words, max_size=2) | anything, "type": some.just("object")},
)
optional = {"parameters": parameters | anything, "strict": anything, "description": anything}
functions = some.fixed_dictionaries({"name": names}, optional=optional)
tools_ = some.fixed_dictionaries({"type": some.just("function"), "function": functions})
choices = some.sampled_from(["auto", "none", "required"]) | tools_ | anything
bodies = some.fixed_dictionaries(
    {"tools": some.lists(tools_ | anything, max_size=3) | anything, "tool_choice": choices},
    optional={"parallel_tool_calls": some.booleans() | anything},
)


@pytest.mark.parametrize("family", ["hermes", "qwen3_coder", "pythonic"])
def test_any_tools_get_an_answer_or_a_refusal(folder: Path, tmp_path: Path, family: str) -> None:
    seen: set[int] = set()
    with asyncio.Runner() as runner:
        serves = serving(folder, tmp_path, "x", tool_call_parser=family)
        live = runner.run(serves.__aenter__())
        app = create_app(live.service)

        @given(body=bodies)
        @settings(max_examples=120, deadline=None)
        def ask(body: dict[str, Any]) -> None:
            whole = {"messages": ASK, "max_tokens": 1, **body}
            status, text = runner.run(over_asgi(app, "/v1/chat/completions", json.dumps(whole).encode()))
            seen.add(status)
            assert status == 200 or (status == 400 and json.loads(text)["error"]["param"]), text
            assert live.service.admission.taken == 0

        ask()
        runner.run(serves.__aexit__(None, None, None))
    assert seen == {200, 400}
