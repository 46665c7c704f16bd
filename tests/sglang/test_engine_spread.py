"""SGLang's whole engine on several ranks and on two machines: the tokens of one rank, and what a lost rank ends."""

import os
import signal
import socket
from collections.abc import Callable

import pytest

from tests.sglang.engines import EAGLE3, PLAIN, EngineServer, Zygote, answer, settles, stream


def killing(server: EngineServer, rank: str) -> Callable[[], None]:
    return lambda: os.kill(server.rank(rank), signal.SIGKILL)


@pytest.mark.parametrize(
    ("spread", "settings", "rank"),
    [("sglang.tp=2", EAGLE3, "scheduler_TP1"), ("sglang.dp=2", PLAIN, "scheduler_DP1")],
)
def test_two_ranks_answer_as_one_and_end_together(
    zygote: Zygote, expected: str, spread: str, settings: tuple[str, ...], rank: str
) -> None:
    with zygote.serve(*settings, spread) as server:
        server.wait_ready()
        assert answer(server) == expected
        events = stream(server, killing(server, rank))
        assert "engine_dead" in events[-2]
        assert server.wait() == 1
        assert settles(lambda: not server.processes())


def test_two_machines_answer_as_one_and_a_lost_rank_ends_both(zygote: Zygote, expected: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    both = (*EAGLE3, "sglang.tp=2", "sglang.nnodes=2", f"sglang.dist_init_addr=127.0.0.1:{port}")
    with zygote.serve(*both) as head, zygote.serve(*both, "sglang.node_rank=1") as other:
        head.wait_ready()
        other.wait_for("machine 1 of 2 is up")
        assert answer(head) == expected
        events = stream(head, killing(other, "scheduler_TP1"))
        assert "engine_dead" in events[-2]
        assert (head.wait(), other.wait()) == (1, 1)
        assert settles(lambda: not head.processes() + other.processes())


def test_a_further_machine_ends_with_a_signal(zygote: Zygote) -> None:
    """Machine 0 never comes: the other waits for it, and leaves when it is told to."""
    settings = (*PLAIN, "sglang.tp=2", "sglang.nnodes=2", "sglang.dist_init_addr=127.0.0.1:9", "sglang.node_rank=1")
    with zygote.serve(*settings) as other:
        assert settles(lambda: len(other.processes()) > 1, 60)
        os.kill(other.pid, signal.SIGTERM)
        assert other.wait() == 0
        assert settles(lambda: not other.processes())


def test_pipeline_parallelism_with_a_head_is_refused(zygote: Zygote) -> None:
    with zygote.serve(*EAGLE3, "sglang.pp=2") as server:
        assert server.wait() == 2
        assert "SGLang does not run EAGLE-3 with pipeline parallelism" in server.output
