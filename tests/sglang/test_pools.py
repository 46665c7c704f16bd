"""Threads of a fork run torch at once: its pool is there before them."""

import sys
import threading
import time

import torch

from tests.sglang.forked import run_forked


def test_threads_of_a_fork_find_the_pool() -> None:
    """Without `tests.sglang.pools` nine of ten such forks fail."""
    numbers = torch.ones(100_000)
    assert numbers.double().sum() == 100_000  # this process has a pool for forks to leak

    def body() -> None:
        faults: list[RuntimeError] = []
        start = time.perf_counter() + 0.003

        def widen() -> None:
            while time.perf_counter() < start:
                pass
            try:
                numbers.double()
            except RuntimeError as fault:
                faults.append(fault)

        sys.setswitchinterval(1e-6)
        threads = [threading.Thread(target=widen) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []

    for _ in range(5):
        run_forked(body)
