"""Converts a body into contracts: sampling, speculation and text rules, checked against the limits.

Called by the routes before a request takes a place. Every error names the field, its limit and the value given.
"""

import secrets
from dataclasses import dataclass
from typing import TypeVar

from aerie.contracts.errors import BadRequest
from aerie.contracts.messages import Ready
from aerie.contracts.sampling import SamplingParams, SpeculationParams, check_sampling, distribution_of
from aerie.contracts.server_section import LimitsConfig
from aerie.server.openai.bodies import ChatBody, CompletionBody, GenerateBody, SpeculationOptions
from aerie.server.openai.choice import TextRules
from aerie.server.text.bad_words import banned_ids
from aerie.server.text.context import context_exceeded
from aerie.server.text.tokenizer import Tokenizer

_T = TypeVar("_T")

COMPLETION_TOKENS = 16
"""Default max_tokens of /v1/completions, as in OpenAI's API. A chat may fill the context by default."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """A body's parameters, independent of its prompt."""

    sampling: SamplingParams
    """Its `max_tokens` depends on the prompt's length: see `fit`."""
    max_tokens: int | None
    max_tokens_field: str
    """The field that gave `max_tokens`."""
    speculation: SpeculationParams
    rules: TextRules
    choices: int


def read_parameters(
    body: ChatBody | CompletionBody, limits: LimitsConfig, ready: Ready, tokenizer: Tokenizer
) -> Parameters:
    stops = _read_stops(body, limits)
    _check_choices(body, limits)
    if body.stream_options is not None and not body.stream:
        raise BadRequest("stream_options is for streams; set stream to true or leave it out", param="stream_options")
    max_tokens = _max_tokens(body)
    sampling = SamplingParams(
        **distribution_of(body),
        max_tokens=ready.max_length if max_tokens is None else max_tokens,
        min_tokens=_or(body.min_tokens, 0),
        stop_token_ids=tuple(dict.fromkeys(body.stop_token_ids or ())),
        logit_bias=body.logit_bias or {},
        allowed_token_ids=None if body.allowed_token_ids is None else tuple(dict.fromkeys(body.allowed_token_ids)),
        banned_token_ids=banned_ids(body.bad_words or (), tokenizer),
        ignore_eos=bool(body.ignore_eos),
        seed=_read_seed(body, limits),
        logprobs=_read_logprobs(body),
    )
    check_sampling(sampling, temperature_max=limits.temperature_max, vocabulary=ready.vocabulary)
    options = body.speculation or SpeculationOptions()
    ends = frozenset(() if sampling.ignore_eos else ready.end_ids)
    return Parameters(
        sampling=sampling,
        max_tokens=max_tokens,
        max_tokens_field=_max_tokens_field(body),
        speculation=SpeculationParams(
            enabled=options.enabled, max_draft_tokens=options.max_draft_tokens, trees=options.trees
        ),
        rules=TextRules(
            stops=stops,
            stop_ids=frozenset(sampling.stop_token_ids) | ends,
            end_ids=ends,
            include_stop=bool(body.include_stop_str_in_output),
            min_tokens=sampling.min_tokens,
            skip_special=_or(body.skip_special_tokens, True),
        ),
        choices=_or(body.n, 1),
    )


def check_prompt(prompt: list[int], ready: Ready, param: str) -> None:
    """Raises BadRequest if a prompt is empty, leaves no room for an answer, or holds ids outside the vocabulary."""
    if not prompt:
        raise BadRequest("the prompt is empty; it needs at least one token", param=param)
    if len(prompt) >= ready.max_length:
        given = f"your prompt has {len(prompt)} tokens and the answer needs at least one"
        raise context_exceeded(ready.max_length, given, "Please reduce the length of the prompt", param)
    highest = max(prompt)
    if highest >= ready.vocabulary:
        raise BadRequest(f"the prompt holds token id {highest}; the highest is {ready.vocabulary - 1}", param=param)


def fit(parameters: Parameters, prompt_tokens: int, ready: Ready) -> int:
    """max_tokens for a prompt of this length: the requested number, or the rest of the context."""
    room = ready.max_length - prompt_tokens
    if parameters.max_tokens is None:
        if parameters.sampling.min_tokens > room:
            raise BadRequest(
                f"min_tokens is {parameters.sampling.min_tokens}; the context has room for {room}", param="min_tokens"
            )
        return room
    if parameters.max_tokens > room:
        asked, field = parameters.max_tokens, parameters.max_tokens_field
        given = f"you requested {prompt_tokens + asked} tokens ({prompt_tokens} in the prompt, {asked} as {field})"
        advice = f"Please reduce the length of the prompt, or {field} to {room}"
        raise context_exceeded(ready.max_length, given, advice, field)
    return parameters.max_tokens


def _max_tokens_field(body: ChatBody | CompletionBody) -> str:
    newer = isinstance(body, ChatBody) and body.max_completion_tokens is not None
    return "max_completion_tokens" if newer else "max_tokens"


def _max_tokens(body: ChatBody | CompletionBody) -> int | None:
    if isinstance(body, ChatBody):
        return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return _or(body.max_tokens, COMPLETION_TOKENS)


def _read_stops(body: GenerateBody, limits: LimitsConfig) -> tuple[str, ...]:
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(dict.fromkeys(body.stop or ()))
    if len(stops) > limits.max_stop_strings:
        raise BadRequest(f"stop has {len(stops)} strings; at most {limits.max_stop_strings} are allowed", param="stop")
    for stop in stops:
        if not 1 <= len(stop) <= limits.max_stop_length:
            raise BadRequest(
                f"stop holds a string of {len(stop)} characters; each must have 1 to {limits.max_stop_length}",
                param="stop",
            )
    return stops


def _check_choices(body: GenerateBody, limits: LimitsConfig) -> None:
    if body.n is not None and body.n > limits.max_choices:
        raise BadRequest(f"n is {body.n}; at most {limits.max_choices} choices are allowed", param="n")


def _read_seed(body: GenerateBody, limits: LimitsConfig) -> int:
    if body.seed is not None:
        return body.seed
    if limits.require_seed:
        raise BadRequest("seed is missing; this deployment asks for one (limits.require_seed)", param="seed")
    return secrets.randbits(63)


def _read_logprobs(body: ChatBody | CompletionBody) -> int:
    if isinstance(body, CompletionBody):
        return _or(body.logprobs, -1)
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    return _or(body.top_logprobs, 0) if body.logprobs else -1


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value
