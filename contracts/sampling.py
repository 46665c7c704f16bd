"""How a request wants its tokens chosen, and the key of the Gumbel noise that chooses them.

Each field is declared here once, with all that is known about it: `FIELDS` is the table of them.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from aerie.contracts.errors import BadRequest
from aerie.contracts.sampling_field import SamplingField, table_of
from aerie.contracts.token_lists import check_allowed, check_biases, check_ids

MAX_STOP_IDS = 16
"""The most stop ids of a row that the device tables hold, end tokens included."""
MAX_LOGPROBS = 20
GREEDY_BELOW = 1e-5
"""Lower temperatures are greedy: dividing logits by them would overflow."""
INT32_MAX = 2**31 - 1

Column = NDArray[np.float32 | np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionParams:
    """What shapes the distribution of the next token. Each field is a column of the device's row tables."""

    temperature: Annotated[
        float,
        SamplingField(
            least=0,
            zero_below=GREEDY_BELOW,
            sglang="temperature",
            meaning="divides the logits; 0 takes the likeliest token",
        ),
    ] = 1.0
    top_p: Annotated[
        float,
        SamplingField(
            least=0,
            above=True,
            most=1,
            need="filters",
            sglang="top_p",
            meaning="only the likeliest tokens, until their probabilities sum to this",
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        SamplingField(
            least=0,
            most=INT32_MAX,
            off=-1,
            need="filters",
            sglang="top_k",
            origin="vLLM",
            meaning="only this many of the likeliest tokens; 0 is all",
        ),
    ] = 0
    min_p: Annotated[
        float,
        SamplingField(
            least=0,
            most=1,
            need="filters",
            sglang="min_p",
            origin="vLLM",
            meaning="only tokens at least this likely, relative to the likeliest",
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        SamplingField(
            least=0,
            above=True,
            most=100,
            need="edits",
            sglang="repetition_penalty",
            origin="vLLM",
            meaning="divides positive logits of tokens of prompt and answer, multiplies negative ones",
        ),
    ] = 1.0
    frequency_penalty: Annotated[
        float,
        SamplingField(
            least=-2,
            most=2,
            need="edits",
            sglang="frequency_penalty",
            meaning="subtracted from a token's logit for each time that it is in the answer",
        ),
    ] = 0.0
    presence_penalty: Annotated[
        float,
        SamplingField(
            least=-2,
            most=2,
            need="edits",
            sglang="presence_penalty",
            meaning="subtracted once from the logits of tokens that are in the answer",
        ),
    ] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(DistributionParams):
    """What the device needs to choose a token, and to end."""

    max_tokens: Annotated[int, SamplingField(least=1, most=INT32_MAX, sglang="max_new_tokens")] = 16
    min_tokens: Annotated[int, SamplingField(least=0, most=INT32_MAX)] = 0
    """No stop id is chosen before this many tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the request; the scheduler adds the model's end tokens unless `ignore_eos`."""
    logit_bias: dict[int, float] = dataclasses.field(default_factory=dict, hash=False)
    """Added to the logits of these tokens."""
    allowed_token_ids: tuple[int, ...] | None = None
    """No other token is chosen; None allows all."""
    banned_token_ids: tuple[int, ...] = ()
    """These tokens are not chosen: `bad_words`."""
    ignore_eos: Annotated[bool, SamplingField(sglang="ignore_eos")] = False
    seed: Annotated[int, SamplingField(least=-(2**63), most=2**63 - 1, sglang="sampling_seed")] = 0
    logprobs: Annotated[int, SamplingField(least=-1, most=MAX_LOGPROBS)] = -1
    """-1: none; 0: of the chosen tokens; n: also of the n likeliest. Under the target, before temperature and filters.
    """

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def edits(self) -> list[str]:
        """The request's fields that change the logits of single tokens. With any, its row needs an edit slot."""
        found = [name for name in EDITING if getattr(self, name) != COLUMNS[name].neutral]
        lists = {
            "logit_bias": self.logit_bias,
            "allowed_token_ids": self.allowed_token_ids,
            "bad_words": self.banned_token_ids,
        }
        return found + [name for name, given in lists.items() if given]


FIELDS = table_of(SamplingParams)
"""The table: every field of a request's sampling that is a number or a flag, by name. Fields that name single tokens
are no columns; `contracts.token_lists` has their rules.
"""
COLUMNS = table_of(DistributionParams)
"""The fields that have a column in the device's row tables."""
EDITING = tuple(name for name, one in COLUMNS.items() if one.need == "edits")
"""The columns that change the logits of single tokens."""
REFUSED = {"length_penalty": 1}
"""Sampling fields of other servers that the table lacks, with the values that change nothing: only these are taken."""


class SpeculationParams(msgspec.Struct, frozen=True, kw_only=True):
    """A request's speculation options. `max_draft_tokens` bounds the nodes drafted in a step, without the root."""

    enabled: bool = True
    max_draft_tokens: int | None = None
    trees: bool = False
    """Return the drafted tree of each step with its tokens."""


def distribution_of(request: Any) -> dict[str, Any]:
    """The values of DistributionParams in a request, whose attributes have the same names."""
    return {name: field.given(getattr(request, name)) for name, field in COLUMNS.items()}


def columns_of(params: Sequence[DistributionParams]) -> dict[str, Column]:
    """Each column's values for rows with these parameters."""
    return {
        name: np.array([field.stored(getattr(one, name)) for one in params], dtype=field.dtype)
        for name, field in COLUMNS.items()
    }


def check_sampling(params: SamplingParams, *, temperature_max: float, vocabulary: int) -> None:
    """Raises BadRequest with the field, its limit and the value given."""
    most = {"temperature": temperature_max, "min_tokens": params.max_tokens}
    for name, field in FIELDS.items():
        if field.least is not None:
            field.check(getattr(params, name), most.get(name))
    if len(params.stop_token_ids) > MAX_STOP_IDS // 2:
        raise BadRequest(
            f"stop_token_ids has {len(params.stop_token_ids)} ids; at most {MAX_STOP_IDS // 2} are allowed",
            param="stop_token_ids",
        )
    check_ids("stop_token_ids", params.stop_token_ids, vocabulary)
    check_biases(params.logit_bias, vocabulary)
    check_allowed(params.allowed_token_ids, params.banned_token_ids, vocabulary)


def noise_key(seed: int, prompt: list[int], choice: int) -> int:
    """The 63-bit key of a request's Gumbel noise.

    It depends on the seed, the prompt as first sent and the choice index. So choices of one request (`n > 1`) and
    requests that share only the seed draw different noise, and a request that is preempted and resumed draws the same
    noise.
    """
    digest = hashlib.blake2b(digest_size=8)
    digest.update(seed.to_bytes(8, "little", signed=True))
    digest.update(choice.to_bytes(4, "little"))
    digest.update(b"".join(token.to_bytes(4, "little") for token in prompt))
    return int.from_bytes(digest.digest(), "little") >> 1
