"""The oldest SGLang that is served, of an environment of its own: `make setup-sglang-oldest`; skipped without it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import InternalServerError

from tests.sglang.engines import EAGLE3, HOME, PLAIN, Zygote, answer, stream

PYTHON = Path(os.environ.get("SGLANG_OLDEST", HOME / ".venv-sglang-oldest" / "bin" / "python"))

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=f"no {PYTHON}: make setup-sglang-oldest")


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    one = Zygote(tmp_path_factory.mktemp("oldest"), python=PYTHON)
    yield one
    one.close()


def test_it_answers_as_aerie_does_and_a_lost_rank_ends_it(oldest: Zygote, expected: str) -> None:
    with oldest.serve(*PLAIN) as server:
        server.wait_ready()
        assert "SGLang 0.5.17" in server.output
        assert answer(server) == expected
        events = stream(server, lambda: os.kill(server.rank("sglang::scheduler"), signal.SIGKILL))
        assert "engine_dead" in events[-2]
        assert server.wait() == 1


def test_its_eagle3_does_not_run_on_a_cpu_and_says_why(oldest: Zygote) -> None:
    """The shim has the operators of the newest release. It is the engine that dies, and the request hears of it."""
    with oldest.serve(*EAGLE3) as server:
        server.wait_ready()
        assert "head               /" in server.output
        with pytest.raises(InternalServerError, match="SGLang's engine died"):
            answer(server)
        assert server.wait() == 1
        assert "write_req_to_token_pool_triton" in server.output
