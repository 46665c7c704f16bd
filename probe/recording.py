"""Records answers and what the head would have drafted at each of their positions.

Under seed coupling a draft is accepted exactly as far as it equals the text. So one recording gives the acceptance of
every chain up to its depth: a shorter chain is the beginning of the longer one. A tree is recorded by its shape, since
a smaller one is not part of a larger one. Each step of a recording drafts, and commits the target's own choice alone,
so that no position is passed over.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from aerie.contracts.config import Config
from aerie.contracts.errors import AerieError
from aerie.contracts.messages import DraftTree, Failed, Finished, Generate, Tokens
from aerie.contracts.sampling import SpeculationParams
from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Lane
from aerie.probe.drive import MakeLane
from aerie.probe.shapes import for_lane, with_shape
from aerie.scheduler import Scheduler


@dataclass(slots=True)
class Recording:
    """One request's answer. What is known by place is known of each token but the last."""

    request: Generate
    tokens: list[int] = field(default_factory=list)
    drafts: list[list[int]] = field(default_factory=list)
    """The chain that is drafted after each token."""
    sure: list[int] = field(default_factory=list)
    """Levels of that chain until the head's confidence ends it; empty without a threshold."""
    trees: dict[DraftShape, list[int]] = field(default_factory=dict)
    """Nodes of each tree that equal the text."""
    reason: str = ""

    def accepted(self) -> list[int]:
        """Of each chain, how many tokens equal the text."""
        return [_equal(draft, self.tokens[place + 1 :]) for place, draft in enumerate(self.drafts)]


def chain(depth: int) -> DraftShape:
    return DraftShape(depth, 1, depth + 1)


def always(config: Config, shape: DraftShape, *, threshold: float = 0.0) -> Config:
    """The config that drafts this shape in every step; chains as far as `spec.confidence_threshold: threshold` lets."""
    config = with_shape(config, shape)
    spec = config.spec.model_copy(update={"planner": "fixed", "confidence_threshold": threshold})
    return config.model_copy(update={"spec": spec})


def record(
    config: Config,
    requests: Sequence[Generate],
    make_lane: MakeLane,
    *,
    depth: int,
    trees: Sequence[DraftShape] = (),
    rows: int = 8,
) -> list[Recording]:
    """The answers to `requests`, in their order, with chains of `depth`, these trees, and the levels that the config's
    confidence threshold leaves. Raises AerieError when one fails.
    """
    recordings = {request.id: Recording(request) for request in requests}
    wide = for_lane(config, [chain(depth), *trees], rows=rows)
    with closing(make_lane(_one_by_one(always(wide, chain(depth)), wide))) as lane:
        for reply in _replies(lane, _one_by_one(always(wide, chain(depth))), requests, rows):
            if isinstance(reply, Finished):
                recordings[reply.id].reason = reply.reason
            else:
                _take(recordings[reply.id], reply)
        for shape in trees:
            for reply in _replies(lane, _one_by_one(always(wide, shape)), requests, rows):
                if isinstance(reply, Tokens):
                    _take_tree(recordings[reply.id], shape, reply.tree)
    threshold = config.spec.confidence_threshold
    if threshold:
        sure = _one_by_one(always(config, chain(depth), threshold=threshold))
        with closing(make_lane(sure)) as lane:
            for reply in _replies(lane, sure, requests, 1):
                if isinstance(reply, Tokens):
                    recordings[reply.id].sure.append(0 if reply.tree is None else len(reply.tree.token_ids) - 1)
    for recording in recordings.values():  # the prompt's own step drafts nothing
        recording.sure = recording.sure[1:]
        recording.trees = {shape: accepted[1:] for shape, accepted in recording.trees.items()}
    return list(recordings.values())


def _one_by_one(config: Config, shapes: Config | None = None) -> Config:
    """The config whose steps commit one token each, the target's own; with the shapes of another config."""
    spec = config.spec.model_copy(update={"simulate_acceptance": 1.0})
    if shapes is not None:
        spec = spec.model_copy(update={"by_load": shapes.spec.by_load})
    return config.model_copy(update={"spec": spec})


def _replies(lane: Lane, config: Config, requests: Sequence[Generate], rows: int) -> Iterator[Tokens | Finished]:
    scheduler = Scheduler(lane, config)
    waiting, running = list(reversed(requests)), 0
    while waiting or not scheduler.idle:
        while waiting and running < rows:
            scheduler.submit(_with_trees(waiting.pop()))
            running += 1
        for reply in scheduler.iterate():
            if isinstance(reply, Failed):
                raise AerieError(f"{reply.id} failed: {reply.message}", code=reply.code)
            if isinstance(reply, Tokens):
                assert len(reply.ids) == 1, "a step of a recording commits one token"
                yield reply
            elif isinstance(reply, Finished):
                running -= 1
                yield reply


def _with_trees(request: Generate) -> Generate:
    return Generate(
        id=request.id,
        prompt=request.prompt,
        sampling=request.sampling,
        speculation=SpeculationParams(trees=True),
    )


def _take(recording: Recording, reply: Tokens) -> None:
    if recording.tokens:
        recording.drafts.append([] if reply.tree is None else reply.tree.token_ids[1:])
    recording.tokens += reply.ids


def _take_tree(recording: Recording, shape: DraftShape, tree: DraftTree | None) -> None:
    accepted = recording.trees.setdefault(shape, [])
    accepted.append(0 if tree is None else _along(tree, recording.tokens[len(accepted) :]))


def _along(tree: DraftTree, text: Sequence[int]) -> int:
    """Nodes of the longest path below the root that equals the text."""
    node, count = 0, 0
    for token in text:
        places = zip(tree.token_ids, tree.parents, strict=True)
        node = next((place for place, one in enumerate(places) if place and one == (token, node)), 0)
        if not node:
            break
        count += 1
    return count


def _equal(draft: Sequence[int], text: Sequence[int]) -> int:
    for count, (one, other) in enumerate(zip(draft, text, strict=False)):
        if one != other:
            return count
    return min(len(draft), len(text))
