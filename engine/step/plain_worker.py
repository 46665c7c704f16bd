"""The worker without speculation: the baseline that speculation must match in text and beat in speed."""

import torch

from aerie.contracts.step import Capacity, StepPlan
from aerie.contracts.worker import Answering
from aerie.engine.cuda import Runtime
from aerie.engine.grammars.guides import Guides
from aerie.engine.step.plain_graphs import PlainGraphs
from aerie.engine.step.plain_step import plain_step
from aerie.engine.step.results import Pending
from aerie.engine.step.state import DeviceState


class PlainWorker:
    """Implements contracts.worker.Worker: one token per row and step."""

    def __init__(self, state: DeviceState, graphs: PlainGraphs | None = None) -> None:
        """Steps that `graphs` has not recorded are launched call by call."""
        self.state = state
        self._graphs = graphs

    @property
    def capacity(self) -> Capacity:
        return self.state.capacity

    @property
    def guides(self) -> Guides | None:
        return self.state.guides

    @property
    def runtime(self) -> Runtime | None:
        """The GPU's; None on a CPU."""
        return self.state.runtime

    def step(self, plan: StepPlan, answer: Answering) -> None:
        self.state.needs.note(plan)
        self.run(plan, answer)

    def run(self, plan: StepPlan, answer: Answering) -> None:
        """`step` for a plan whose rows' needs have been noted."""
        output = self._launch(plan).output()
        self.state.answer(lambda: output, lambda read: answer(read()))

    def launch(self, plan: StepPlan) -> Pending:
        """Launches a step's work without waiting for a device that runs asynchronously."""
        self.state.needs.note(plan)
        return self._launch(plan)

    @torch.inference_mode()
    def _launch(self, plan: StepPlan) -> Pending:
        self.state.begin(plan)
        self.state.transfer.begin()
        times = self.state.clock.start()
        sent: list[Pending] = []
        bucket = None if self._graphs is None else self._graphs.bucket(plan)
        if self._graphs is not None and bucket is not None:
            self._graphs.launch(bucket, plan, times, sent.append)
        else:
            plain_step(self.state, plan, times, sent.append)
        self.state.clock.stop()
        return sent[0]

    def close(self) -> None:
        self.state.close()
