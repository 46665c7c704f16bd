"""The official client against a live server: chat, stream, usage, seeds, errors, a caller that leaves."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.e2e.conftest import QUESTION, Server
from tests.patience import PATIENCE, TRIES, until


def chat(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**({"model": "aerie-demo", "messages": QUESTION, "max_tokens": 48} | fields))


def streamed(client: OpenAI, **fields: Any) -> tuple[str, Any]:
    """Text and usage of a stream."""
    parts, usage = [], None
    for chunk in chat(client, stream=True, stream_options={"include_usage": True}, **fields):
        parts += [choice.delta.content or "" for choice in chunk.choices]
        usage = chunk.usage or usage
    return "".join(parts), usage


def test_a_chat_says_what_was_drafted(drafting: OpenAI) -> None:
    answer = chat(drafting, temperature=0)
    speculation = answer.usage.speculation
    assert answer.choices[0].message.content and answer.choices[0].finish_reason in ("stop", "length")
    assert speculation["drafted"] >= speculation["accepted"] > 0
    assert speculation["acceptance_length"] == pytest.approx(
        1 + speculation["accepted"] / speculation["steps"], abs=1e-4
    )


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.2])
def test_the_text_is_the_same_streamed_or_not_drafted_or_not(
    client: OpenAI, drafting: OpenAI, temperature: float
) -> None:
    fields = {"temperature": temperature, "seed": 11}
    whole = chat(client, **fields).choices[0].message.content
    plain, usage = streamed(client, extra_body={"speculation": {"enabled": False}}, **fields)
    assert usage.speculation["drafted"] == 0
    drafted, usage = streamed(drafting, **fields)
    assert usage.speculation["drafted"] > 0 and usage.completion_tokens <= 48
    assert whole == plain == drafted == chat(drafting, **fields).choices[0].message.content


def test_a_request_reads_the_same_in_a_crowd(client: OpenAI) -> None:
    def ask(seed: int) -> str:
        fields = {"messages": [{"role": "user", "content": "Tell me about the sea."}], "max_tokens": 24}
        return chat(client, temperature=1.5, seed=seed, **fields).choices[0].message.content

    alone = [ask(seed) for seed in range(4)]
    with ThreadPoolExecutor(12) as crowd:
        together = list(crowd.map(ask, [0, 1, 2, 3] * 3))
    assert together == alone * 3 and len(set(alone)) > 1


def test_errors_reach_the_client_as_its_own_classes(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        chat(client, model="no-such-model")
    with pytest.raises(openai.BadRequestError, match=r"temperature is 9.*2"):
        chat(client, temperature=9)
    with pytest.raises(openai.BadRequestError, match="priority is not supported"):
        chat(client, extra_body={"priority": 5})
    with pytest.raises(openai.BadRequestError, match=r"maximum context length is 2048"):
        chat(client, messages=[{"role": "user", "content": "word " * 5000}])


def test_a_caller_that_leaves_frees_its_row(server: Server, client: OpenAI) -> None:
    until(lambda: not metric(server, "aerie:places_taken"), "an earlier request has left its place taken")
    for _ in range(TRIES):  # an answer may be done before anybody reads its first piece
        before = metric(server, "aerie:request_success_total", finished_reason="abort")
        stream = chat(client, stream=True, max_tokens=1500, extra_body={"ignore_eos": True})
        next(iter(stream))
        taken = metric(server, "aerie:places_taken")
        stream.close()
        until(lambda: not metric(server, "aerie:places_taken"), "the place is still taken")
        until(lambda: not metric(server, "aerie:num_requests_running"), "the row is still taken")
        if metric(server, "aerie:request_success_total", finished_reason="abort") == before + 1:
            assert taken == 1
            return
    raise AssertionError("the answer went on to its end, without a reader")


def test_only_the_lane_loads_torch(server: Server) -> None:
    parts = {"server": server.process.pid, **server.children()}
    loaded = {part for part, pid in parts.items() if "libtorch" in Path(f"/proc/{pid}/maps").read_text()}
    assert loaded == {"lane"}


def test_what_the_server_prints_can_be_pasted(server: Server) -> None:
    assert re.search(r"^  spec\.\* +head=\"models/demo/head\"", server.output, re.MULTILINE), "what is set"
    assert re.search(r"^  kv_bytes +[\d.]+ MiB$", server.output, re.MULTILINE), "what it takes"
    curl = re.search(r"^curl [\s\S]*?\}'$", server.output, re.MULTILINE)
    snippet = re.search(r"^from openai import[\s\S]*?content\)$", server.output, re.MULTILINE)
    assert curl and snippet
    pasted = subprocess.run(["bash", "-c", curl[0]], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert '"chat.completion"' in pasted.stdout
    ran = subprocess.run(
        [sys.executable, "-c", snippet[0]], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert ran.stdout.strip()


def metric(server: Server, name: str, **labels: str) -> float | None:
    """The sum of a metric's samples whose labels are as given."""
    import urllib.request

    from prometheus_client.parser import text_string_to_metric_families

    text = urllib.request.urlopen(f"{server.url}/metrics", timeout=PATIENCE).read().decode()
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return sum(found) if found else None


def test_the_trees_of_a_stream_are_told_to_who_asks(drafting: OpenAI) -> None:
    fields = {"temperature": 0.8, "seed": 5, "stream": True, "max_tokens": 40}
    asked = [c for c in chat(drafting, **fields, extra_body={"speculation": {"trees": True}}) if c.choices]
    trees = [tree for chunk in asked for tree in chunk.choices[0].model_extra.get("trees", [])]
    assert trees and any(tree["accepted"] for tree in trees)
    for tree in trees:
        assert len(tree["token_ids"]) == len(tree["texts"]) == len(tree["parents"]) > 1
        assert tree["parents"][0] == 0
        assert all(parent < node for node, parent in enumerate(tree["parents"][1:], start=1))
        path = [0, *tree["accepted"]]
        assert all(tree["parents"][child] == parent for parent, child in pairwise(path))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in asked)
    accepted = [tree["texts"][node].strip() for tree in trees for node in tree["accepted"]]
    assert all(piece in text for piece in accepted if not piece.startswith("<|"))
    silent = [chunk.choices[0] for chunk in chat(drafting, **fields) if chunk.choices]
    assert all("trees" not in (choice.model_extra or {}) for choice in silent)
    assert "".join(choice.delta.content or "" for choice in silent) == text
