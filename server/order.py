"""From a body to what the scheduler is asked: limits checked, defaults filled, one `Generate` for each choice."""

import secrets
import time
from dataclasses import dataclass

from contracts.config import LimitsConfig
from contracts.errors import BadRequest
from contracts.messages import Generate
from contracts.sampling import SamplingParams, SpeculationParams, check_sampling
from server.protocol import SamplingBody


@dataclass(frozen=True, slots=True)
class Order:
    """One HTTP request's choices, and how their text is cut."""

    requests: tuple[Generate, ...]
    stops: tuple[str, ...]
    include_stop: bool


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the engine said of itself when it was ready."""

    max_length: int
    vocabulary: int


def make_order(
    body: SamplingBody,
    prompts: list[list[int]],
    *,
    request_id: str,
    max_tokens: int | None,
    logprobs: int,
    bounds: Bounds,
    limits: LimitsConfig,
) -> Order:
    """`max_tokens` None fills the context. Raises BadRequest that names the field, the limit and the value."""
    if body.n > limits.max_choices:
        raise BadRequest(f"n is {body.n}; at most {limits.max_choices} choices are made", param="n")
    if limits.require_seed and body.seed is None:
        raise BadRequest("seed is required by this deployment (limits.require_seed); send an integer", param="seed")
    seed = secrets.randbits(63) if body.seed is None else body.seed
    now = time.monotonic()
    requests = []
    for number, prompt in enumerate(prompts):
        sampling = _sampling(body, _room(prompt, max_tokens, bounds), logprobs, seed)
        check_sampling(sampling, temperature_max=limits.temperature_max, vocabulary=bounds.vocabulary)
        for choice in range(body.n):
            requests.append(
                Generate(
                    id=f"{request_id}-{number * body.n + choice}",
                    prompt=prompt,
                    sampling=sampling,
                    speculation=SpeculationParams(
                        enabled=body.speculation.enabled, max_draft_tokens=body.speculation.max_draft_tokens
                    ),
                    choice=choice,
                    cache_salt=body.cache_salt or "",
                    queue_deadline=now + limits.queue_seconds,
                    deadline=now + limits.total_seconds,
                )
            )
    return Order(tuple(requests), _stops(body.stop, limits), body.include_stop_str_in_output)


def check_prompt(ids: list[int], bounds: Bounds) -> None:
    """A prompt must have a token, leave room for one, and hold ids that the model knows."""
    if not ids:
        raise BadRequest("the prompt is empty; it must hold at least one token", param="prompt")
    if len(ids) >= bounds.max_length:
        raise BadRequest(
            f"the prompt has {len(ids)} tokens; this model holds {bounds.max_length} of prompt and answer together",
            param="prompt",
            code="context_length_exceeded",
        )
    if (largest := max(ids)) >= bounds.vocabulary:
        raise BadRequest(f"the prompt holds token {largest}; the vocabulary ends at {bounds.vocabulary - 1}", param="prompt")


def _room(prompt: list[int], max_tokens: int | None, bounds: Bounds) -> int:
    check_prompt(prompt, bounds)
    room = bounds.max_length - len(prompt)
    if max_tokens is not None and max_tokens > room:
        raise BadRequest(
            f"max_tokens is {max_tokens} and the prompt has {len(prompt)} tokens; together they may be {bounds.max_length}",
            param="max_tokens",
            code="context_length_exceeded",
        )
    return room if max_tokens is None else max_tokens


def _sampling(body: SamplingBody, max_tokens: int, logprobs: int, seed: int) -> SamplingParams:
    def given(value: float | None, neutral: float) -> float:
        return neutral if value is None else value

    return SamplingParams(
        temperature=given(body.temperature, 1.0),
        top_k=max(body.top_k or 0, 0),
        top_p=given(body.top_p, 1.0),
        min_p=given(body.min_p, 0.0),
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=body.ignore_eos,
        seed=seed,
        logprobs=logprobs,
    )


def _stops(stop: str | list[str] | None, limits: LimitsConfig) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > limits.max_stop_strings:
        raise BadRequest(f"stop has {len(stops)} strings; at most {limits.max_stop_strings} are allowed", param="stop")
    for text in stops:
        if not text or len(text) > limits.max_stop_length:
            raise BadRequest(
                f"a stop string has {len(text)} characters; it must have 1 to {limits.max_stop_length}", param="stop"
            )
    return stops
