"""What crosses between scheduler and device.

A step is one device round for a batch. The scheduler describes it in a frozen `StepPlan` of small numpy arrays, which
never holds a request; the device answers with a `StepOutput`. All arrays of a plan have one entry per row of the step
unless stated otherwise.

Lengths count positions whose target KV is written. A row of length n has tokens x_0 .. x_(n-1) in its pages; x_n, the
*root*, is known (on the device) but not yet run. `bound` is the host's upper bound of the length: the host knows no
more while another step of the row is in flight. The device reads the true length from its FutureMap table.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aerie.contracts.edit_starts import EditStarts
from aerie.contracts.grammar import Masking, Preparing
from aerie.contracts.sampling import Column

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

MAX_NODES = 64
"""Nodes of a row's tree, root included: a node's ancestors are one 64-bit word."""
DUMMY_PAGE = 0
"""A page that no row owns; page-table entries past a row's pages point at it, and surplus writes land in it."""


class StepKind(IntEnum):
    PREFILL = 0
    DECODE = 1


class Ending(IntEnum):
    """Why a row is done."""

    OPEN = 0
    STOP_ID = 1
    LENGTH = 2


@dataclass(frozen=True, slots=True)
class RowStarts:
    """Rows that get a new owner with this step. The device resets their tables and keeps these values until the next
    owner.

    The reset points the row's whole page table at DUMMY_PAGE. It comes before the step's page updates.
    """

    rows: Ints
    noise_keys: Longs
    sampling: dict[str, Column]
    """The values of `contracts.sampling.COLUMNS` by name; temperature 0 is greedy."""
    prompt_lengths: Ints
    """Tokens of the original prompt; min_tokens and the limit count from here, also after a preemption."""
    limits: Ints
    """Total tokens (prompt and answer) at which the row is done."""
    min_lengths: Ints
    """Total tokens before which no stop id is chosen."""
    stop_ids: Ints
    """[starts, MAX_STOP_IDS], padded with -1; end tokens of the model included unless ignored."""
    guides: Longs | None = None
    """The request whose grammar each row's answer must match; -1 for free text. None if all are free."""
    answers: list[list[int]] = field(default_factory=list)
    """With `guides`: the tokens that each request has answered already, if it was preempted."""
    edits: EditStarts | None = None


@dataclass(frozen=True, slots=True)
class PageUpdates:
    """Entries of the device's page table to set before the step: table[rows[i], slots[i]] = pages[i]."""

    rows: Ints
    slots: Ints
    pages: Ints


@dataclass(frozen=True, slots=True)
class PrefillWork:
    """One chunk of a prompt per row. Only a prompt's last chunk samples a token and writes the row's generation."""

    token_ids: Ints
    """[sum of chunk lengths], row after row."""
    starts: Ints
    """True length of each row before its chunk."""
    counts: Ints
    """Tokens in each row's chunk."""
    is_last: Bools
    next_ids: Ints
    """The prompt token after the chunk, which completes the head's last pair; -1 on a last chunk, where it is sampled.
    """


@dataclass(frozen=True, slots=True)
class DecodeWork:
    """One draft-verify round per row; `nodes` includes the root. Depth 0 and one node is plain decoding."""

    bounds: Ints
    """Upper bound of each row's length before the step."""
    nodes: Ints
    """Nodes to verify for each row, 1 .. MAX_NODES."""
    depth: int
    """Levels drafted below the root, the same for all rows; 0 drafts nothing."""
    topk: int
    """Children kept of a drafted node; 1 makes chains."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. `generations` names the FutureMap generation that each row reads; the step writes `1 - generation`."""

    number: int
    kind: StepKind
    rows: Ints
    """Indices into the device's row tables, 0 .. capacity.rows - 1, each at most once."""
    generations: Ints
    drafting: Bools
    """Rows whose committed tokens extend the head.

    Of the others, those that rest keep what the head needs to catch up; plain rows keep nothing and stay plain.
    """
    prefill: PrefillWork | None
    decode: DecodeWork | None
    starts: RowStarts | None = None
    page_updates: PageUpdates | None = None
    logprobs: int = -1
    """The most log probabilities that a row of this step wants (see SamplingParams.logprobs)."""
    resting: Bools | None = None
    """Rows of a decode step whose taps and token go to their tail instead of the head; None if there are none."""
    fresh: Bools | None = None
    """Of the rows that rest, those whose tail is empty: it begins with this step. None if no row rests."""
    behind: Ints | None = None
    """At most so many tokens in each row's tail, with which its head is extended first; None if there are none."""
    trees: bool = False
    """Whether a row of this step wants to see what was drafted."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log probabilities of the committed tokens [rows, committed], and the likeliest `count` ids with theirs."""

    chosen: Floats
    rank_ids: Ints
    """[rows, committed, count]"""
    rank_logprobs: Floats


@dataclass(frozen=True, slots=True)
class DraftedTrees:
    """The verified nodes of each row [rows, M], the root first; the first `drafted` + 1 nodes of a row are real."""

    token_ids: Ints
    parents: Ints
    """Node index, smaller than the node's own; the root is its own parent."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step committed. A row that had ended before the step commits nothing."""

    number: int
    token_ids: Ints
    """[rows, depth + 1]: the accepted tokens, then the bonus; entries past `counts` are undefined."""
    counts: Ints
    """Committed tokens of each row, cut at the token that ended it; 0 for a prefill chunk before the last."""
    accepted: Ints
    """How many of the committed tokens were drafted."""
    drafted: Ints
    """Nodes verified beyond the root; 0 where nothing was drafted."""
    lengths: Ints
    """True length of each row after the step."""
    endings: Ints
    """The `Ending` of each row."""
    logprobs: Logprobs | None = None
    trees: DraftedTrees | None = None
    faults: dict[int, str] = field(default_factory=dict)
    """Why rows of the step cannot go on: their grammar blew a limit. What they committed is void."""
    masking: Masking | None = None
    forbidden: Ints | None = None
    """[rows] drafted tokens that the target would have chosen, but for the row's grammar; None without grammars."""
    phase_seconds: dict[str, float] = field(default_factory=dict)
    """Device seconds by phase: prefill, draft, verify, accept, extend. Work after the answer is reported with the next
    step; it comes first here.
    """
    busy_seconds: float = 0.0
    """Time that the lane worked on this step; on a CPU lane, its CPU time divided by its threads."""
    began: float = 0.0
    """`time.monotonic()` on the lane's machine when the first phase began, and at the answer; 0 if not reported."""
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the device can hold, fixed at start."""

    rows: int
    pages: int
    """Page ids are 0 .. pages - 1; page 0 is the dummy."""
    page_size: int
    max_length: int
    """Tokens that one row may hold, prompt and answer together."""
    vocabulary: int
    end_ids: tuple[int, ...]
    drafts: bool
    """Whether a draft head is loaded."""
    reserve: int
    """Slots past a row's bound that a decode step may write: max(nodes, head scratch). Pages must cover them."""
    edit_slots: int = 0
    """Rows at a time that may change the logits of single tokens, by penalties or biases."""
    tail: int = 0
    """Tokens that a resting row may be behind, so that its head can catch up; 0 if rows cannot rest."""
    grammars: bool = False
    """Whether answers can be held to a grammar."""
    report: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    """Bytes of target, head, KV and head KV, dtype, threads, attention backend: shown at start and at /config."""


class Lane(Preparing, Protocol):
    """Carries plans to a worker and outputs back. At most two steps are in flight; they settle in launch order."""

    @property
    def capacity(self) -> Capacity: ...

    def launch(self, plan: StepPlan) -> None:
        """Returns at once. Raises EngineDead if the worker is gone."""

    def settle(self) -> StepOutput:
        """Waits for the oldest step in flight. Raises EngineDead if the worker died or failed on it."""

    def close(self) -> None: ...
