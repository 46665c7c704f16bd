"""A request's life on the host, from `Generate` to its one `Finished` or `Failed`.

Made by the loop, moved between phases by the policy, updated by settle. Invariant: `tokens` are the prompt and every
emitted token, so recomputing them after a preemption continues exactly where the client's text ends.
"""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from aerie.contracts.errors import AerieError, BadRequest
from aerie.contracts.messages import Failed, Finished, FinishReason, Generate, Usage
from aerie.contracts.sampling import MAX_STOP_IDS, noise_key
from aerie.contracts.step import Capacity, Longs
from aerie.contracts.token_lists import check_end


class Phase(Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    ENDED = "ended"


@dataclass(slots=True)
class Tally:
    """What a request has taken so far, summed over the rows it has held; times are by the loop's clock."""

    accepted_steps: Longs
    """[depth + 1]: decode steps that accepted exactly 0, 1, ... nodes."""
    drafted: int = 0
    forbidden: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    admitted_at: float | None = None
    first_token_at: float | None = None

    def add(self, drafted: int, forbidden: int, accepted_steps: Longs) -> None:
        """Adds the counts of a row that the request leaves."""
        self.drafted += drafted
        self.forbidden += forbidden
        self.accepted_steps += accepted_steps


@dataclass(slots=True, eq=False)
class Request:
    """`number` is the order of arrival. During prefill, `computed` tokens are in its pages or in flight to them."""

    message: Generate
    number: int
    arrived: float
    limit: int
    """Tokens of prompt and answer together at which it ends."""
    noise_key: int
    stop_ids: tuple[int, ...]
    tally: Tally
    tokens: list[int] = field(default_factory=list)
    phase: Phase = Phase.WAITING
    row: int = -1
    computed: int = 0
    to_read: int = 0
    """Tokens to prefill when it entered the queue, or, less the cached ones, when it got its row."""
    prefills_before: int = 0
    """Prefill steps planned before it arrived."""
    edits: bool = False
    """Whether it changes the logits of single tokens, for which its row needs an edit slot."""
    edit_slot: int = -1
    recomputed: bool = False
    """Whether it computes its tokens again to get head KV."""

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def remaining(self) -> int:
        """Tokens still to prefill."""
        return len(self.tokens) - self.computed

    @property
    def prompt_length(self) -> int:
        return len(self.message.prompt)

    def usage(self, now: float) -> Usage:
        tally = self.tally
        admitted = now if tally.admitted_at is None else tally.admitted_at
        first = now if tally.first_token_at is None else tally.first_token_at
        per_depth = per_position(tally.accepted_steps) if tally.drafted else []
        return Usage(
            prompt_tokens=self.prompt_length,
            completion_tokens=len(self.tokens) - self.prompt_length,
            cached_tokens=tally.cached_tokens,
            steps=int(tally.accepted_steps.sum()),
            drafted=tally.drafted,
            accepted=sum(per_depth),
            accepted_per_position=per_depth,
            forbidden=tally.forbidden,
            preemptions=tally.preemptions,
            queue_seconds=admitted - self.arrived,
            prefill_seconds=first - admitted,
        )

    def finished(self, reason: FinishReason, now: float, stop_id: int | None = None) -> Finished:
        return Finished(id=self.id, reason=reason, usage=self.usage(now), stop_id=stop_id)


def accept(
    message: Generate, capacity: Capacity, *, number: int, now: float, max_length: int, max_depth: int
) -> Request:
    """Makes a request from a message. Raises BadRequest for a prompt that this device cannot hold or run."""
    prompt, sampling = message.prompt, message.sampling
    if not prompt:
        raise BadRequest("the prompt has 0 tokens; at least 1 is needed", param="prompt", code="empty_prompt")
    if len(prompt) >= max_length:
        raise BadRequest(
            f"the prompt has {len(prompt)} tokens; at most {max_length - 1} fit beside one token of answer "
            f"(the limit is {max_length} together); shorten it",
            param="prompt",
            code="context_length_exceeded",
        )
    if min(prompt) < 0 or max(prompt) >= capacity.vocabulary:
        raise BadRequest(
            f"the prompt holds token ids from {min(prompt)} to {max(prompt)}; they must be at least 0 and at most "
            f"{capacity.vocabulary - 1}",
            param="prompt",
        )
    ends = () if sampling.ignore_eos else capacity.end_ids
    stop_ids = tuple(dict.fromkeys((*ends, *sampling.stop_token_ids)))
    if len(stop_ids) > MAX_STOP_IDS:
        raise BadRequest(
            f"there are {len(stop_ids)} stop ids, the model's {len(ends)} end tokens included; at most {MAX_STOP_IDS} "
            "are allowed",
            param="stop_token_ids",
        )
    edits = sampling.edits
    if edits and not capacity.edit_slots:
        raise BadRequest(
            f"{edits[0]} is set, and this server does not edit logits: engine.edit_slots is 0; leave it out",
            param=edits[0],
        )
    check_end(sampling.min_tokens, sampling.allowed_token_ids, sampling.banned_token_ids, stop_ids, capacity.vocabulary)
    return Request(
        message=message,
        number=number,
        arrived=now,
        limit=min(len(prompt) + sampling.max_tokens, max_length),
        noise_key=noise_key(sampling.seed, prompt, message.choice),
        stop_ids=stop_ids,
        tally=Tally(accepted_steps=np.zeros(max_depth + 1, dtype=np.int64)),
        tokens=list(prompt),
        to_read=len(prompt),
        edits=bool(edits),
    )


def failed(id: str, error: AerieError) -> Failed:
    return Failed(id=id, code=error.code or error.kind, message=error.message, status=error.status)


def per_position(accepted_steps: Longs) -> list[int]:
    """[depth + 1] steps that accepted exactly d nodes -> steps that accepted a node at depth 1, 2, ..."""
    at_least: list[int] = np.cumsum(accepted_steps[::-1])[::-1].tolist()
    return at_least[1:]
