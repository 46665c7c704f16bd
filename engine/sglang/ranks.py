"""Tensor parallelism within a machine: a lane of several processes, one per rank, that run the same plans.

Only the scheduler plans, and this lane sends the same StepPlan to every rank. All ranks commit the tokens of rank 0
(`SglangTarget.agree`). The outputs are compared as well, since ranks that disagree would wait for each other forever.
If a rank dies, the others are ended.
"""

from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError, EngineDead
from aerie.contracts.step import Capacity, StepOutput, StepPlan
from aerie.engine.lanes.cpu import CpuLane
from aerie.engine.lanes.preparing import NoGrammars
from aerie.engine.sglang.place import free_port

_DEATH_SECONDS = 1.0
"""A rank notices another's death by its connection, shortly before that process has an exit code."""


class RanksLane(NoGrammars):
    """Implements contracts.step.Lane. `factory` names a function (config, rank, ranks, port) that builds a worker."""

    def __init__(self, factory: str, config: Config, *, ranks: int, threads: int) -> None:
        port = free_port()
        self._lanes = [
            CpuLane(factory, config, threads=threads, arguments=(rank, ranks, port), wait=False)
            for rank in range(ranks)
        ]
        self._each(CpuLane.await_ready)

    @property
    def capacity(self) -> Capacity:
        return self._lanes[0].capacity

    @property
    def pids(self) -> list[int | None]:
        return [lane.pid for lane in self._lanes]

    def launch(self, plan: StepPlan) -> None:
        for rank, lane in enumerate(self._lanes):
            try:
                lane.launch(plan)
            except EngineDead as error:
                raise self._ended(rank, error) from None

    def settle(self) -> StepOutput:
        outputs: list[StepOutput] = self._each(CpuLane.settle)
        first = outputs[0]
        for rank, output in enumerate(outputs[1:], 1):
            if not _same(output, first):
                self.kill()
                raise EngineDead(f"rank {rank} disagrees with rank 0 about step {first.number}; all ranks were ended")
        return first

    def close(self) -> None:
        for lane in self._lanes:
            lane.hang_up()
        for lane in self._lanes:
            lane.close()

    def kill(self) -> None:
        """Ends all ranks at once, since the others would wait for a dead rank."""
        for lane in self._lanes:
            lane.kill()

    def _each(self, receive: Callable[[CpuLane], Any]) -> list[Any]:
        """The next answer of every rank, received in any order. If a rank dies, ends all and raises EngineDead with its
        name.
        """
        received: dict[int, Any] = {}
        while len(received) < len(self._lanes):
            open_ = {lane.connection: rank for rank, lane in enumerate(self._lanes) if rank not in received}
            for connection in wait(list(open_)):
                rank = open_[connection]  # type: ignore[index]
                try:
                    received[rank] = receive(self._lanes[rank])
                except EngineDead as error:
                    raise self._ended(rank, error) from None
                except ConfigError:
                    self.kill()
                    raise
        return [received[rank] for rank in range(len(self._lanes))]

    def _ended(self, rank: int, error: EngineDead) -> EngineDead:
        """Ends all ranks and names the dead one; another rank that waited for it may have reported first."""
        if not self._lanes[rank].exit_code:
            wait([lane.sentinel for place, lane in enumerate(self._lanes) if place != rank], _DEATH_SECONDS)
        dead = [(place, lane.exit_code) for place, lane in enumerate(self._lanes) if lane.exit_code]
        self.kill()
        said = error.message
        if dead and dead[0][0] != rank:
            rank, code = dead[0]
            said = f"its process ended with exit code {code}; its requests are lost"
        return EngineDead(f"rank {rank} of {len(self._lanes)}: {said}")


def _same(output: StepOutput, first: StepOutput) -> bool:
    """Whether two ranks committed the same tokens; entries past `counts` are undefined."""
    committed = np.arange(first.token_ids.shape[1]) < first.counts[:, None]  # [rows, w]
    return (
        np.array_equal(output.counts, first.counts)
        and np.array_equal(output.lengths, first.lengths)
        and np.array_equal(output.endings, first.endings)
        and np.array_equal(output.token_ids[committed], first.token_ids[committed])
    )
