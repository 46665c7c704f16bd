"""Records answers and what the head would have drafted at each of their positions.

Under seed coupling a draft is accepted exactly as far as it equals the text. So one recording gives the acceptance of
every chain up to its depth: a shorter chain is the beginning of the longer one. Each step of the recording run drafts
the deepest chain and commits the target's own choice alone, so that no position is passed over.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

from aerie.contracts.config import Config
from aerie.contracts.errors import AerieError
from aerie.contracts.messages import Failed, Finished, Generate, Tokens
from aerie.contracts.sampling import SpeculationParams
from aerie.contracts.shape import DraftShape
from aerie.probe.drive import MakeLane
from aerie.probe.shapes import with_shape
from aerie.scheduler import Scheduler


@dataclass(slots=True)
class Recording:
    """One request's answer."""

    request: Generate
    tokens: list[int] = field(default_factory=list)
    drafts: list[list[int]] = field(default_factory=list)
    """What is drafted after each token but the last."""
    reason: str = ""

    def accepted(self) -> list[int]:
        """Of each draft, how many tokens equal the text."""
        return [_equal(draft, self.tokens[place + 1 :]) for place, draft in enumerate(self.drafts)]


def plain_chains(config: Config, depth: int) -> Config:
    """The config that drafts chains of this depth in every step, whatever the head's confidence."""
    config = with_shape(config, DraftShape(depth, 1, depth + 1))
    spec = config.spec.model_copy(update={"planner": "fixed", "confidence_threshold": 0.0})
    return config.model_copy(update={"spec": spec})


def record(
    config: Config, requests: Sequence[Generate], make_lane: MakeLane, *, depth: int, rows: int = 8
) -> list[Recording]:
    """The answers to `requests`, in their order. Raises AerieError when one fails."""
    chains = plain_chains(config, depth)
    spec = chains.spec.model_copy(update={"simulate_acceptance": 1.0})  # one token a step, the target's own
    chains = chains.model_copy(update={"spec": spec})
    recordings = {request.id: Recording(request) for request in requests}
    waiting = list(reversed(requests))
    with closing(make_lane(chains)) as lane:
        scheduler = Scheduler(lane, chains)
        running = 0
        while waiting or not scheduler.idle:
            while waiting and running < rows:
                scheduler.submit(_with_trees(waiting.pop()))
                running += 1
            for reply in scheduler.iterate():
                if isinstance(reply, Failed):
                    raise AerieError(f"{reply.id} failed: {reply.message}", code=reply.code)
                if isinstance(reply, Tokens):
                    _take(recordings[reply.id], reply)
                elif isinstance(reply, Finished):
                    recordings[reply.id].reason = reply.reason
                    running -= 1
    return list(recordings.values())


def _with_trees(request: Generate) -> Generate:
    return Generate(
        id=request.id,
        prompt=request.prompt,
        sampling=request.sampling,
        speculation=SpeculationParams(trees=True),
    )


def _take(recording: Recording, reply: Tokens) -> None:
    assert len(reply.ids) == 1, "a step of a recording commits one token"
    if recording.tokens:
        recording.drafts.append([] if reply.tree is None else reply.tree.token_ids[1:])
    recording.tokens += reply.ids


def _equal(draft: Sequence[int], text: Sequence[int]) -> int:
    for count, (one, other) in enumerate(zip(draft, text, strict=False)):
        if one != other:
            return count
    return min(len(draft), len(text))
