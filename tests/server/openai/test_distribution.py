"""Request bodies have every field of the table, with its range; their other fields are named here."""

import pytest
from pydantic import ValidationError

from aerie.contracts.sampling import COLUMNS, FIELDS, SamplingParams, distribution_of
from aerie.contracts.sampling_field import SamplingField
from aerie.server.openai.bodies import ChatBody, CompletionBody

USER = [{"role": "user", "content": "hi"}]
NOT_SAMPLING = {"model", "messages", "prompt", "n", "stream", "stream_options", "cache_salt", "speculation"}
NOT_SAMPLING |= {"chat_template_kwargs", "add_special_tokens", "return_token_ids"}
NOT_SAMPLING |= {"stop", "include_stop_str_in_output", "skip_special_tokens"}
NOT_SAMPLING |= {"response_format", "structured_outputs"}
NOT_SAMPLING |= {"tools", "tool_choice", "parallel_tool_calls", "reasoning_effort"}
NOT_SAMPLING |= {"metadata", "service_tier", "prompt_cache_key", "safety_identifier", "user"}
NOT_SAMPLING |= {"guided_json", "guided_regex", "guided_choice", "guided_grammar"}
WITH_OWN_RULES = {
    "stop_token_ids",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "max_completion_tokens",
    "logprobs",
    "top_logprobs",
}
"""They end as fields of SamplingParams, but have shapes of their own."""


@pytest.mark.parametrize("body", [ChatBody, CompletionBody])
def test_every_field_is_in_the_table_or_is_not_about_sampling(body: type[ChatBody] | type[CompletionBody]) -> None:
    offered = set(body.model_fields)
    assert not set(FIELDS) - offered, "fields of the table that no request can set"
    assert not offered - set(FIELDS) - NOT_SAMPLING - WITH_OWN_RULES


@pytest.mark.parametrize("name", ["max_tokens", "min_tokens", "seed", *COLUMNS])
def test_ranges_are_the_table_s(name: str) -> None:
    field, reported = FIELDS[name], ChatBody.model_json_schema()["properties"][name]["anyOf"][0]
    least = field.least if field.off is None else field.off
    limits = {"exclusiveMinimum" if field.above else "minimum": least, "maximum": field.most}
    kind = {float: "number", int: "integer"}[field.kind]
    assert reported == {"type": kind} | {edge: limit for edge, limit in limits.items() if limit is not None}


@pytest.mark.parametrize("field", COLUMNS.values(), ids=lambda field: field.name)
def test_absent_and_null_are_the_neutral_value(field: SamplingField) -> None:
    neutral = {name: other.neutral for name, other in COLUMNS.items()}
    assert distribution_of(ChatBody.model_validate({"messages": USER})) == neutral
    given = [None, field.neutral, *([] if field.off is None else [field.off])]
    for value in given:
        assert distribution_of(ChatBody.model_validate({"messages": USER, field.name: value})) == neutral
    assert SamplingParams(**neutral) == SamplingParams()


@pytest.mark.parametrize("field", COLUMNS.values(), ids=lambda field: field.name)
def test_numbers_are_numbers(field: SamplingField) -> None:
    for value in (str(field.neutral), True, [field.neutral]):
        with pytest.raises(ValidationError):
            CompletionBody.model_validate({"prompt": "x", field.name: value})
