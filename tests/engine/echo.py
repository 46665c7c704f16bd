"""A worker without a model for the lanes' tests: it answers with its plan's numbers, sleeps, or fails on command."""

import time
from collections.abc import Callable

import numpy as np

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.step import Capacity, StepOutput, StepPlan

SLOW, FAILING, UNSAYABLE = 1000, 2000, 3000
"""Step numbers from which a step takes long, raises, or answers what no frame holds."""


class EchoWorker:
    def __init__(self, config: Config) -> None:
        self.capacity = Capacity(
            rows=config.scheduler.max_running,
            pages=9,
            page_size=16,
            max_length=128,
            vocabulary=300,
            end_ids=(1, 7),
            drafts=False,
            reserve=1,
            report={"threads": 1, "note": None, "share": 0.5},
        )

    def step(self, plan: StepPlan, answer: Callable[[StepOutput], None]) -> None:
        if UNSAYABLE > plan.number >= FAILING:
            raise ValueError("a planted failure")
        if FAILING > plan.number >= SLOW:
            time.sleep(60)
        none = np.zeros(plan.rows.size, np.int32)
        output = StepOutput(
            number=plan.number,
            token_ids=np.stack((plan.rows, plan.generations), 1),
            counts=none + (2j if plan.number >= UNSAYABLE else 2),  # type: ignore[arg-type]
            accepted=none,
            drafted=none,
            lengths=none + plan.number,
            endings=none,
            phase_seconds={"verify": 0.25},
        )
        answer(output)

    def close(self) -> None:
        """Holds nothing."""


def build_echo(config: Config) -> EchoWorker:
    return EchoWorker(config)


def build_nothing(config: Config) -> EchoWorker:
    raise ConfigError(f"no worker for {config.model.path!r}", param="model.path")
