"""How a request wants its tokens chosen, and the key of the Gumbel noise that chooses them."""

import hashlib
import math

import msgspec

from aerie.contracts.errors import BadRequest

MAX_STOP_IDS = 16
"""The most stop ids of a row that the device tables hold, end tokens included."""
MAX_LOGPROBS = 20
GREEDY_BELOW = 1e-5
"""Lower temperatures are greedy: dividing logits by them would overflow."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """What the device needs to choose a token. `top_k` 0, `top_p` 1 and `min_p` 0 leave the distribution unchanged."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int = 16
    min_tokens: int = 0
    """No stop id is chosen before this many tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the request; the scheduler adds the model's end tokens unless `ignore_eos`."""
    ignore_eos: bool = False
    seed: int = 0
    logprobs: int = -1
    """-1: none; 0: of the chosen tokens; n: also of the n likeliest. Under the target, before temperature and filters.
    """

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


class SpeculationParams(msgspec.Struct, frozen=True, kw_only=True):
    """A request's speculation options. `max_draft_tokens` bounds the nodes drafted in a step, without the root."""

    enabled: bool = True
    max_draft_tokens: int | None = None
    trees: bool = False
    """Return the drafted tree of each step with its tokens."""


def check_sampling(params: SamplingParams, *, temperature_max: float, vocabulary: int) -> None:
    """Raises BadRequest with the field, its limit and the value given."""
    _check("temperature", params.temperature, 0.0, temperature_max)
    _check("top_p", params.top_p, 0.0, 1.0, above=True)
    _check("min_p", params.min_p, 0.0, 1.0)
    _check("top_k", params.top_k, 0, 2**31 - 1)
    _check("max_tokens", params.max_tokens, 1, 2**31 - 1)
    _check("min_tokens", params.min_tokens, 0, params.max_tokens)
    _check("seed", params.seed, -(2**63), 2**63 - 1)
    _check("logprobs", params.logprobs, -1, MAX_LOGPROBS)
    if len(params.stop_token_ids) > MAX_STOP_IDS // 2:
        raise BadRequest(
            f"stop_token_ids has {len(params.stop_token_ids)} ids; at most {MAX_STOP_IDS // 2} are allowed",
            param="stop_token_ids",
        )
    for token in params.stop_token_ids:
        _check("stop_token_ids", token, 0, vocabulary - 1)


def _check(field: str, value: float, low: float, high: float, *, above: bool = False) -> None:
    if not math.isfinite(value) or value > high or value < low or (above and value == low):
        edge = "greater than" if above else "at least"
        raise BadRequest(f"{field} is {value}; it must be {edge} {low} and at most {high}", param=field)


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
