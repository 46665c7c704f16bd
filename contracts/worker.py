"""What runs steps on a device. A lane carries plans to it and answers back."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from aerie.contracts.grammar import Guiding
from aerie.contracts.step import Capacity, StepOutput, StepPlan

Answering = Callable[[StepOutput], None]
"""Takes the output of a step, on any thread."""
Reading = Callable[[], StepOutput]
"""Makes the output of a step from what it has left on the host. Called once, on any thread, also beside later steps."""
Telling = Callable[[Reading], None]
"""Takes what reads the output of a step, on any thread."""
Run = Callable[[Telling], None]
"""Runs a staged step, and answers it when `step` would."""


class Worker(Guiding, Protocol):
    """Runs steps in order on one device. It changes device state only; the scheduler owns all host state."""

    @property
    def capacity(self) -> Capacity: ...

    def step(self, plan: StepPlan, answer: Answering) -> None:
        """Runs a step. Calls `answer` once, as soon as the output is known and those of earlier steps are answered;
        only the next step waits for the work after that, which may run beside it, the answer too.
        """

    def close(self) -> None:
        """Answers what it has run, and ends its threads."""


@runtime_checkable
class StagingWorker(Worker, Protocol):
    """A worker whose host's work on a step may come beside the step before."""

    def stage(self, plan: StepPlan) -> Run:
        """What the plan alone says is made here; the returned function does the rest. On any one thread; the steps are
        staged in order, and all of them run, in that order.
        """
