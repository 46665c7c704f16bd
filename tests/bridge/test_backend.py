"""The engine's objects as the bridge sees them, with a stand-in for SGLang's."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from aerie.bridge.backend import EngineBackend, lives
from aerie.contracts.config import load_config
from aerie.contracts.grammar import Grammar
from aerie.contracts.messages import Generate
from aerie.contracts.sampling import SamplingParams
from aerie.engine.sglang.plugin import received


class StandIn:
    """What the backend asks of `sglang.Engine`."""

    def __init__(self, *, device: str = "cuda") -> None:
        self.asked: dict[str, Any] = {}
        self.server_args = SimpleNamespace(device=device)
        self.tokenizer_manager = SimpleNamespace(
            max_req_input_len=1000,
            model_config=SimpleNamespace(vocab_size=50, hf_eos_token_id={7, 2}),
            get_loads=self._loads,
        )

    def get_all_child_pids(self) -> list[int]:
        return [os.getpid()]

    async def async_generate(self, **asked: Any) -> AsyncIterator[dict[str, Any]]:
        self.asked = asked

        async def outputs() -> AsyncIterator[dict[str, Any]]:
            yield {"output_ids": [5]}

        return outputs()

    async def _loads(self) -> list[Any]:
        replica = SimpleNamespace(
            num_running_reqs=2, num_used_tokens=30, max_total_num_tokens=100, max_running_requests=16
        )
        return [replica, replica]


def backend_of(engine: StandIn, *settings: str) -> EngineBackend:
    return EngineBackend(engine, load_config(None, ["engine.kind=sglang", "model.path=m", *settings]), grammars=True)


async def test_a_request_in_its_words() -> None:
    engine = StandIn()
    request = Generate(id="a", prompt=[1, 2], sampling=SamplingParams(logprobs=3, max_tokens=9))
    assert [output async for output in backend_of(engine).generate(request)] == [{"output_ids": [5]}]
    assert (engine.asked["input_ids"], engine.asked["rid"], engine.asked["stream"]) == ([1, 2], "a", True)
    assert (engine.asked["return_logprob"], engine.asked["top_logprobs_num"]) == (True, 3)
    assert "cache_salt" not in engine.asked and "ebnf" not in engine.asked["sampling_params"]


async def test_a_grammar_arrives_as_it_was_sent() -> None:
    engine, grammar = StandIn(), Grammar(kind="json_schema", text='{"type": "object"}', behind="</think>")
    request = Generate(id="a", prompt=[1, 2], sampling=SamplingParams(), grammar=grammar)
    _ = [output async for output in backend_of(engine).generate(request)]
    assert received(engine.asked["sampling_params"]["ebnf"]) == grammar


async def test_what_it_says_of_itself() -> None:
    backend = backend_of(StandIn(), "spec.head=h", "scheduler.max_running=200", "spec.draft_temperature=2")
    load = await backend.load()
    assert (load.running, load.tokens_used, load.tokens_total, load.max_running) == (4, 60, 200, 32)
    ready = backend.ready("0.5.23", load)
    assert (ready.max_length, ready.vocabulary, ready.end_ids, ready.grammars) == (1000, 50, [2, 7], True)
    assert (ready.report["max_running"], ready.report["max_running_by_memory"]) == (200, 32)
    assert ready.report["unused_settings"] == "spec.draft_temperature"


def test_a_head_on_a_cpu_verifies_greedily() -> None:
    assert backend_of(StandIn(device="cpu"), "spec.head=h").greedy_only
    assert not backend_of(StandIn(device="cpu"), "spec.head=none").greedy_only
    assert not backend_of(StandIn(), "spec.head=h").greedy_only


def test_deaths_are_seen() -> None:
    backend = backend_of(StandIn())
    assert backend.death() is None
    backend.fail("a reason")
    backend.fail("a later one")
    assert backend.death() == "a reason"
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert lives(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and not reaped yet
    assert not lives(process.pid)
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    assert not lives(process.pid)
