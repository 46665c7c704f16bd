"""`aerie serve` with SGLang's model on two ranks: the native engine's text, and a rank's death told to all streams."""

import logging
import os
import re
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.sglang.forked import fork_child, run_forked

WORDS = (
    "serve",
    "configs/serve/demo.yaml",
    "server.port=0",
    "engine.threads=1",
    "engine.kv_tokens=16384",
    "model.dtype=float32",
    "engine.device=cpu",
)
RANKS = ("engine.kind=sglang-model", "sglang.tp=2")


class ForkedServer:
    """A server whose processes are forks of the test's."""

    def __init__(self, log: Path, *words: str) -> None:
        self.log = log
        self.pid = os.fork()
        if self.pid == 0:
            self._serve([*WORDS, *words])
        self.process = psutil.Process(self.pid)

    def _serve(self, words: list[str]) -> None:

        from aerie.engine.lanes import cpu
        from tests.sglang.zygote import _run

        code = 1
        try:
            output = os.open(self.log, os.O_WRONLY | os.O_CREAT)
            for descriptor in (1, 2):
                os.dup2(output, descriptor)
            sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", buffering=1, closefd=False) for descriptor in (1, 2))
            cpu.start_child = fork_child  # type: ignore[attr-defined]
            logging.getLogger().handlers.clear()  # pytest's: the server's own log goes to stderr
            code = _run(words)
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:  # noqa: BLE001  the log is all that the test sees of this process
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def client(self, seconds: float = 200) -> openai.OpenAI:
        deadline = time.monotonic() + seconds
        while not (found := re.search(r"serves \S+ at (http://127\.0\.0\.1:\d+)", self.output)):
            assert self.process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline, self.output
            time.sleep(0.1)
        client = openai.OpenAI(base_url=f"{found[1]}/v1", api_key="none", max_retries=0, timeout=120)
        while True:
            try:
                client.models.list()
            except openai.APIConnectionError:
                assert time.monotonic() < deadline, self.output
                time.sleep(0.1)
            else:
                return client

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def ranks(self) -> list[psutil.Process]:
        """The scheduler's children."""
        (scheduler,) = self.process.children()
        found: list[psutil.Process] = scheduler.children()
        return found

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def ask(client: openai.OpenAI, **fields: Any) -> str:
    messages: Any = [{"role": "user", "content": "Count from 20 to 60 in steps of 2."}]
    answer = client.chat.completions.create(model="aerie-demo", messages=messages, max_tokens=40, **fields)
    return answer.choices[0].message.content or ""


def test_two_ranks_answer_as_the_native_engine_does_and_end_together(tmp_path: Path) -> None:
    def body() -> None:
        native = ForkedServer(tmp_path / "native")
        client = native.client()
        wanted = ask(client, temperature=0), ask(client, temperature=0.8, seed=7)
        assert native.end() == 0
        server = ForkedServer(tmp_path / "ranks", *RANKS)
        client = server.client()
        assert (ask(client, temperature=0), ask(client, temperature=0.8, seed=7)) == wanted
        ranks = server.ranks()
        assert len(ranks) == 2
        messages: Any = [{"role": "user", "content": "What does os.walk do?"}]
        stream = client.chat.completions.create(
            model="aerie-demo", messages=messages, max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
        )
        with pytest.raises(openai.APIError) as reported:
            for place, _ in enumerate(stream):
                if place == 2:
                    ranks[1].kill()
        assert reported.value.code == "engine_dead" and "rank 1 of 2" in reported.value.message, (
            "an error event, not silence"
        )
        code = os.waitstatus_to_exitcode(os.waitpid(server.pid, 0)[1])
        assert code not in (0, -signal.SIGKILL), server.output
        assert "rank 1 of 2" in server.output
        assert not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks)

    run_forked(body, seconds=360)
