"""What runs steps on a device. A lane carries plans to it and answers back."""

from collections.abc import Callable
from typing import Protocol

from aerie.contracts.grammar import Guiding
from aerie.contracts.step import Capacity, StepOutput, StepPlan

Answering = Callable[[StepOutput], None]
"""Takes the output of a step, on any thread."""


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
