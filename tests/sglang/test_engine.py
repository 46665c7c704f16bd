"""SGLang's whole engine behind the front end, plain and with the demo pair's EAGLE-3 head: what the API's users see."""

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openai import BadRequestError, OpenAI

from aerie.contracts.provenance import template_source
from tests.sglang.engines import EAGLE3, PLAIN, QUESTION, EngineServer, Zygote, metric, metrics, settles, stream

WORDS = (
    "Count from 20 to 60 in steps of 2.",
    "Say this again:\n402 lamp Sore fan Gitu rope",
    "What does os.walk do?",
    "What is collections.Counter?",
)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"enum": ["small", "large"]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "schema": ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}, ""),
    "regex": ({"extra_body": {"guided_regex": "[a-c]{3,9}[0-9]"}}, r"[a-c]{3,9}[0-9]"),
    "choice": ({"extra_body": {"structured_outputs": {"choice": ["north", "south-east"]}}}, "north|south-east"),
    "grammar": ({"extra_body": {"guided_grammar": 'root ::= "(" [0-9]+ ")"'}}, r"\([0-9]+\)"),
}
AT_ONCE = {"chat_template_kwargs": {"enable_thinking": False}}
"""SGLang masks only what follows the reasoning: held to a form that it does not know, the demo would think on."""
SHOWN_TOOLS = "{% if tools %}{% for tool in tools %}{{ tool.function.name }}{% endfor %}<tool_call>{% endif %}"


@pytest.fixture(scope="module")
def servers(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, EngineServer]]:
    """The demo's template knows no tools; theirs does, and says the same without them."""
    template = tmp_path_factory.mktemp("template") / "tools.jinja"
    template.write_text(SHOWN_TOOLS + (template_source(Path("models/demo/target")) or ""))
    shown = f"server.chat_template={template}"
    with zygote.serve(*PLAIN, shown) as plain, zygote.serve(*EAGLE3, shown) as eagle3:
        found = {"plain": plain.wait_ready(), "eagle3": eagle3.wait_ready()}
        yield found
        for one in found.values():
            os.kill(one.pid, signal.SIGTERM)
        assert [one.wait() for one in found.values()] == [0, 0]
        assert [one.processes() for one in found.values()] == [[], []]


@pytest.fixture(params=["plain", "eagle3"])
def server(request: pytest.FixtureRequest, servers: dict[str, EngineServer]) -> EngineServer:
    return servers[request.param]


@pytest.fixture(scope="module")
def ours() -> list[list[int]]:
    """What Aerie's own engine answers, without a head."""
    from aerie import LLM, SamplingParams

    with LLM("models/demo/target", spec__head="none", model__dtype="float32", engine__threads=1) as llm:
        chats = [[{"role": "user", "content": word}] for word in WORDS]
        results = llm.chat(chats, SamplingParams(temperature=0, max_tokens=48), use_tqdm=False)
        return [result.outputs[0].token_ids for result in results]


def ask(client: OpenAI, word: str, **fields: Any) -> Any:
    return client.chat.completions.create(
        model="target",
        messages=[{"role": "user", "content": word}],
        temperature=0,
        max_tokens=48,
        extra_body={"return_token_ids": True},
        **fields,
    )


def get(server: EngineServer, path: str) -> str:
    with urllib.request.urlopen(server.url + path, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def test_it_answers_what_aerie_answers_token_for_token(server: EngineServer, ours: list[list[int]]) -> None:
    with server.client() as client:
        answers = [ask(client, word).choices[0].token_ids for word in WORDS]
    assert answers == ours


def test_a_stream_brings_the_same_tokens_and_the_usage(server: EngineServer, ours: list[list[int]]) -> None:
    with server.client() as client:
        events = list(ask(client, WORDS[0], stream=True, stream_options={"include_usage": True}))
    ids = [token for event in events for choice in event.choices for token in getattr(choice, "token_ids", None) or []]
    assert ids == ours[0]
    assert events[-1].usage.completion_tokens == len(ours[0]) and len(events) > 3


def test_acceptance_is_told_per_request_and_in_metrics(servers: dict[str, EngineServer]) -> None:
    server = servers["eagle3"]
    drafts = metric(server, "spec_decode_num_drafts_total")
    with server.client() as client:
        usage = ask(client, WORDS[1]).usage
    reported = usage.speculation
    assert reported["accepted"] > 0
    assert sum(reported["accepted_per_position"]) == reported["accepted"]
    assert reported["drafted"] == 5 * reported["steps"]  # six nodes with the root
    assert reported["steps"] + reported["accepted"] >= usage.completion_tokens - 1
    assert reported["acceptance_length"] == pytest.approx(1 + reported["accepted"] / reported["steps"], abs=1e-3)
    assert settles(lambda: metric(server, "spec_decode_num_drafts_total") >= drafts + reported["steps"])
    totals = [f"spec_decode_num_accepted_tokens{by}_total" for by in ("", "_per_pos")]
    accepted, by_position = metrics(server, *totals)
    assert by_position == accepted > 0


def test_plain_answers_draft_nothing(servers: dict[str, EngineServer]) -> None:
    with servers["plain"].client() as client:
        assert ask(client, WORDS[1]).usage.speculation["drafted"] == 0
    assert metric(servers["plain"], "spec_decode_num_drafts_total") == 0


def test_logprobs_of_both_are_those_of_the_model(servers: dict[str, EngineServer]) -> None:
    found = []
    for server in servers.values():
        with server.client() as client:
            content = ask(client, WORDS[2], logprobs=True, top_logprobs=3).choices[0].logprobs.content
        found.append([(one.token, [(top.token, top.logprob) for top in one.top_logprobs]) for one in content])
    plain, eagle3 = found
    assert len(plain) > 5 and [token for token, _ in plain] == [token for token, _ in eagle3]
    for (_, one), (_, other) in zip(plain, eagle3, strict=True):
        assert [token for token, _ in one] == [token for token, _ in other]
        assert [value for _, value in one] == pytest.approx([value for _, value in other], abs=1e-3)


def test_sampling_and_several_choices_without_a_head(servers: dict[str, EngineServer]) -> None:
    """Asked what it was never taught, the model is unsure."""
    unknown = [{"role": "user", "content": "Tell me about the sea."}]
    with servers["plain"].client() as client:
        answer = client.chat.completions.create(
            model="target", messages=unknown, temperature=1.5, max_tokens=16, n=6, extra_body={"min_p": 0.01}
        )
    assert len({choice.message.content for choice in answer.choices}) > 1


@pytest.mark.parametrize("form", FORMS)
def test_answers_match_what_they_have_to(server: EngineServer, form: str) -> None:
    """A model that would count, held to another form by SGLang's masks, drafted or not."""
    fields, wanted = FORMS[form]
    extra = {**fields.get("extra_body", {}), **AT_ONCE}
    with server.client() as client:
        answer = client.chat.completions.create(
            model="target", messages=QUESTION, temperature=0, max_tokens=200, **{**fields, "extra_body": extra}
        )
    text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
    if wanted:
        assert re.fullmatch(wanted, text) if reason == "stop" else form == "grammar", text
    else:
        assert reason == "stop"
        jsonschema.validate(json.loads(text), SCHEMA)


def test_forms_do_not_depend_on_drafts(servers: dict[str, EngineServer]) -> None:
    said = []
    for server in servers.values():
        with server.client() as client:
            said.append(ask(client, WORDS[0], response_format=FORMS["schema"][0]["response_format"]).choices[0])
    assert said[0].token_ids == said[1].token_ids and said[0].message.content == said[1].message.content


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_calls_are_held_to_their_schemas_and_parsed(server: EngineServer, choice: str) -> None:
    tool = {"type": "function", "function": {"name": "note", "parameters": SCHEMA, "strict": True}}
    with server.client() as client:
        stream = client.chat.completions.create(
            model="target", messages=QUESTION, tools=[tool], tool_choice=choice, temperature=0, max_tokens=100,
            parallel_tool_calls=False, stream=True, extra_body=AT_ONCE,
        )  # fmt: skip
        chunks = [chunk.choices[0] for chunk in stream]
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    if choice == "auto":  # the model knows no tools: it answers in text
        assert not calls and chunks[-1].finish_reason in ("stop", "length")
        return
    assert (calls[0].function.name, chunks[-1].finish_reason) == ("note", "tool_calls")
    jsonschema.validate(json.loads("".join(call.function.arguments for call in calls)), SCHEMA)


def test_a_grammar_that_cannot_be_is_refused_before_it_is_queued(server: EngineServer) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    with server.client() as client, pytest.raises(BadRequestError, match="uniqueItems"):
        client.chat.completions.create(model="target", messages=QUESTION, response_format=wanted)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"extra_body": {"min_p": 0.1}}, "min_p is 0.1"),
        ({"temperature": 0.7}, "temperature is 0.7; on a CPU"),
        ({"extra_body": {"speculation": {"enabled": False}}}, "speculation.enabled"),
        ({"extra_body": {"min_tokens": 4}}, "min_tokens is 4"),
    ],
)
def test_what_sglang_would_ignore_is_refused(
    servers: dict[str, EngineServer], fields: dict[str, Any], words: str
) -> None:
    body: dict[str, Any] = {"model": "target", "messages": QUESTION, "max_tokens": 4, "temperature": 0, **fields}
    with servers["eagle3"].client() as client, pytest.raises(BadRequestError, match=words):
        client.chat.completions.create(**body)


def test_the_config_says_whose_engine_it_is_and_how_many_run(server: EngineServer) -> None:
    reported = json.loads(get(server, "/config"))["engine"]
    assert reported["engine"].startswith("SGLang 0.5.") and reported["seeds_give_the_same_text"] is False
    assert reported["max_running"] == reported["max_running_by_memory"] == 8
    assert reported["kv_tokens"] == 4096


def test_a_caller_that_leaves_frees_its_place(server: EngineServer) -> None:
    with server.client() as client:
        stream = client.chat.completions.create(
            model="target",
            messages=QUESTION,
            temperature=0,
            max_tokens=1500,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        assert settles(lambda: metric(server, "num_requests_running") == 1)
        stream.close()
    assert settles(lambda: metric(server, "num_requests_running") == 0)
    with server.client() as client:
        assert ask(client, WORDS[3]).choices[0].message.content, "the place is free again"


def test_a_rank_that_dies_ends_requests_with_an_error_and_the_code_says_so(zygote: Zygote) -> None:
    with zygote.serve(*PLAIN) as server:
        server.wait_ready()
        events = stream(server, lambda: os.kill(server.rank("sglang::scheduler"), signal.SIGKILL))
        assert "engine_dead" in events[-2] and "SGLang's engine died" in events[-2]
        assert server.wait() == 1
        assert settles(lambda: not server.processes())


def test_a_head_of_another_model_does_not_start(zygote: Zygote, tmp_path: Path) -> None:
    head = tmp_path / "head"
    head.mkdir()
    for file in Path("models/demo/head").resolve().iterdir():
        (head / file.name).write_bytes(file.read_bytes())
    config = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps(config | {"hidden_size": config["hidden_size"] * 2}))
    with zygote.serve(*EAGLE3, f"spec.head={head}") as server:
        assert server.wait(240) == 2
        assert "SGLang's engine did not start" in server.output
