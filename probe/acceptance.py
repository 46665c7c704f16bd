"""Acceptance of one shape, as the drafting probes measure it, at a load that is quick."""

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Lane
from aerie.probe.drive import Prompts, Run, ask, drive
from aerie.probe.shapes import with_shape

CONCURRENCY = 16


def accepted(
    lane: Lane, config: Config, shape: DraftShape, prompts: Prompts, temperature: float, max_tokens: int
) -> Run:
    """Answers the prompts with this shape at every load. Raises ConfigError if the lane has no head."""
    if not lane.capacity.drafts:
        raise ConfigError("the target has no head to draft with; set spec.head", param="spec.head")
    requests = ask(prompts, [temperature], max_tokens=max_tokens)
    return drive(lane, with_shape(config, shape), requests, concurrency=CONCURRENCY)
