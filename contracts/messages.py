"""What crosses between server and scheduler.

For every `Generate` the scheduler answers any number of `Tokens` and then exactly one of `Finished` and `Failed`,
whatever happens in between. An `Abort` with a late or unknown id is ignored.
"""

from typing import Literal

import msgspec

from aerie.contracts.grammar import Grammar
from aerie.contracts.sampling import SamplingParams, SpeculationParams

FinishReason = Literal["stop", "length", "abort"]


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class Generate(_Message, frozen=True, kw_only=True):
    """A request. Deadlines are `time.monotonic()` values, comparable between processes of one machine."""

    id: str
    prompt: list[int]
    sampling: SamplingParams
    speculation: SpeculationParams = SpeculationParams()
    grammar: Grammar | None = None
    """What the answer must match; checked by the server. Only for a scheduler whose `Ready` takes grammars."""
    choice: int = 0
    """Index among the `n` choices of one HTTP request."""
    cache_salt: str = ""
    """Prompts share cached pages only if they have the same salt."""
    queue_deadline: float | None = None
    deadline: float | None = None


class Abort(_Message, frozen=True, kw_only=True):
    """The client has left or has all it wants; answered by `Finished(reason="abort")` if the id was still open."""

    id: str


class Stop(_Message, frozen=True, kw_only=True):
    """The server is leaving: fail all open requests and end the scheduler process."""


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """One committed token's log probability under the target, and the likeliest tokens with theirs."""

    logprob: float
    rank_ids: list[int]
    rank_logprobs: list[float]


class DraftTree(msgspec.Struct, frozen=True, kw_only=True):
    """What one step drafted for a row: node 0 is the root, a token already committed; parents come first."""

    token_ids: list[int]
    parents: list[int]


class Tokens(_Message, frozen=True, kw_only=True):
    """Tokens committed by one step, in order: `accepted` of them were drafted, the rest (at most one) the bonus."""

    id: str
    ids: list[int]
    accepted: int
    logprobs: list[TokenLogprobs] | None = None
    tree: DraftTree | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a request took. `accepted_per_position[d]` counts the steps that accepted a node at depth d + 1."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    steps: int = 0
    """Target passes that committed tokens, prefill excluded."""
    drafted: int = 0
    """Nodes verified beyond the roots."""
    accepted: int = 0
    accepted_per_position: list[int] = []
    forbidden: int = 0
    """Drafted tokens that the target would have chosen, had the answer's grammar allowed them."""
    preemptions: int = 0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0


class Finished(_Message, frozen=True, kw_only=True):
    """The regular end of a request. `stop_id` is the token that ended it, if one did (it is in `Tokens` too)."""

    id: str
    reason: FinishReason
    usage: Usage
    stop_id: int | None = None


class Failed(_Message, frozen=True, kw_only=True):
    """The end of a request that could not be served; `code` is the code of an error in `contracts.errors`."""

    id: str
    code: str
    message: str
    status: int = 500


class Ready(_Message, frozen=True, kw_only=True):
    """The first message of a scheduler: it is ready for requests.

    `report` is what `/config` shows of the engine, in bytes and tokens.
    """

    max_length: int
    """Tokens of prompt and answer together that a request may hold."""
    vocabulary: int
    end_ids: list[int]
    grammars: bool = False
    """Whether answers can be held to a grammar."""
    report: dict[str, str | int | float | bool | None]


STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper edges of the step-size histogram in a Snapshot, in tokens."""


class PlannerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What `spec.planner: goodput` chose and what came of it; sums since the start, over decode steps."""

    depth: int
    """The last planned shape."""
    topk: int
    nodes: int
    steps_by_depth: dict[int, int]
    predicted_tokens: float
    predicted_seconds: float
    tokens: int
    """Committed tokens of the same steps."""
    seconds: float
    """Real seconds of the same steps, by the lane's clock."""
    regret_tokens: float
    """Tokens by which plain decoding would have been ahead, over the steps in which it would."""
    resting_seconds: float
    """Seconds of steps that drafted nothing."""
    recomputed: int
    """Rows that computed their tokens again so that drafts could be made for them."""
    calibration_error: float
    """Recent mean of |predicted - accepted| over the predicted nodes of a step."""
    reason: str = ""
    """Why the last choice was made."""
    gain: float = 0.0
    """Predicted tokens a second of the best draft over those of plain steps at the last choice; 0 if unknown."""


class GrammarSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What answers that must match grammars have taken; sums since the start."""

    steps: int = 0
    """Steps in which a row chose under a grammar."""
    choices: int = 0
    """Choices along the rows' paths."""
    masks: int = 0
    """Masks made for them."""
    distinct_masks: int = 0
    """How many of these were different from the others of their step."""
    mask_seconds: float = 0.0
    drafted: int = 0
    """Drafted tokens of the rows."""
    forbidden: int = 0
    """How many of these the target would have chosen, were they allowed."""
    forced: int = 0
    """How many of these a grammar forced."""
    late: int = 0
    """Rows that committed nothing in a step, because a mask was not ready."""
    builds: int = 0
    """Grammars built by the lane."""
    build_seconds: float = 0.0
    reused: int = 0
    """Grammars that had been built for an earlier request."""


class Snapshot(_Message, frozen=True, kw_only=True):
    """The scheduler's gauges and its counters since the start, sent about once a second and when it becomes idle."""

    running: int
    waiting: int
    pages_used: int
    pages_total: int
    prefix_queries: int
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int
    preemptions: int
    steps: int
    step_tokens: list[int]
    """Steps with at most STEP_TOKENS[i] tokens and more than the edge before; the last entry, more than all edges.

    A step's tokens are the prompt tokens that it computes and the tokens that it commits. Empty if steps are not known.
    """
    prefill_tokens: int
    drafts: int
    """Drafts made: rows that drafted, summed over steps."""
    drafted: int
    accepted: int
    accepted_per_position: list[int]
    head_off: bool = False
    """The head was useless for long and is switched off."""
    planner: PlannerSnapshot | None = None
    """None with `spec.planner: fixed` and without a head."""
    grammars: GrammarSnapshot = GrammarSnapshot()
    committed: int
    phase_seconds: dict[str, float]
    """The lane's seconds by phase: prefill, draft, verify, accept, extend."""
    idle_seconds: float
    """Seconds in which requests waited or ran and the lane had no work."""
    busy_seconds: float
    host_seconds: float
    """Seconds of the scheduler's own work."""


class Batch(_Message, frozen=True, kw_only=True):
    """All replies of one turn of the scheduler, in order, in one frame.

    One frame for each row would cost the scheduler more than the rest of a step.
    """

    messages: list[Tokens | Finished | Failed | Snapshot]


ToScheduler = Generate | Abort | Stop
ToServer = Tokens | Finished | Failed | Ready | Snapshot | Batch
