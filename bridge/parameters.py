"""A request's parameters in SGLang's format; rejects what SGLang's engine does not support. Used by bridge and backend.

Invariant: no parameter of a request is silently ignored.
"""

from typing import Any

from aerie.contracts.errors import BadRequest
from aerie.contracts.grammar import Grammar
from aerie.contracts.messages import Generate
from aerie.contracts.sampling import FIELDS, SamplingParams
from aerie.engine.sglang.plugin import sent

MOST_REPETITION = 2.0
"""SGLang's limit of repetition_penalty."""


def check_parameters(request: Generate, *, drafts: bool, greedy_only: bool, salts: bool) -> None:
    """Raises BadRequest for parameters that the engine would ignore.

    `drafts`: a head drafts. `greedy_only`: and this device verifies greedily, whatever the temperature. `salts`: this
    release keeps prefixes of different salts apart.
    """
    sampling, speculation = request.sampling, request.speculation
    if sampling.min_tokens:
        raise BadRequest(
            f"min_tokens is {sampling.min_tokens}; SGLang's engine asks its own tokenizer for it, and here the server "
            "tokenizes; use ignore_eos with max_tokens",
            param="min_tokens",
        )
    for name, given in (("allowed_token_ids", sampling.allowed_token_ids), ("bad_words", sampling.banned_token_ids)):
        if given:
            raise BadRequest(f"{name} is set; SGLang's engine has no such parameter; leave it out", param=name)
    if sampling.repetition_penalty > MOST_REPETITION:
        raise BadRequest(
            f"repetition_penalty is {sampling.repetition_penalty}; SGLang's engine takes at most {MOST_REPETITION}",
            param="repetition_penalty",
        )
    if request.cache_salt and not salts:
        raise BadRequest("cache_salt is set; this release of SGLang does not know it", param="cache_salt")
    if speculation.trees:
        raise BadRequest("speculation.trees is true; SGLang's engine does not tell its trees", param="speculation")
    if not drafts:
        return
    if sampling.min_p:
        raise BadRequest(
            f"min_p is {sampling.min_p}; SGLang's engine does not apply it where a head drafts; use top_p or top_k",
            param="min_p",
        )
    if greedy_only and not sampling.greedy:
        raise BadRequest(
            f"temperature is {sampling.temperature}; on a CPU SGLang's engine verifies drafts greedily; set 0",
            param="temperature",
        )
    if not speculation.enabled or speculation.max_draft_tokens is not None:
        raise BadRequest(
            "speculation.enabled and speculation.max_draft_tokens are not SGLang's to change for one request; its "
            "engine drafts alike for all of them",
            param="speculation",
        )


def sampling_words(sampling: SamplingParams, grammar: Grammar | None = None) -> dict[str, Any]:
    """The `sampling_params` for SGLang's engine."""
    words = {
        field.sglang: field.for_sglang(getattr(sampling, name))
        for name, field in FIELDS.items()
        if field.sglang is not None
    }
    if sampling.stop_token_ids:
        words["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.logit_bias:
        words["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if grammar is not None:
        words["ebnf"] = sent(grammar)
    return words
