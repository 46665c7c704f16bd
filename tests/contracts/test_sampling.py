"""The table of sampling fields says all there is to say about each, and what is made from it agrees with it."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest

from aerie.contracts.errors import BadRequest
from aerie.contracts.sampling import (
    COLUMNS,
    FIELDS,
    GREEDY_BELOW,
    REFUSED,
    DistributionParams,
    SamplingParams,
    check_sampling,
    columns_of,
    distribution_of,
)
from aerie.contracts.sampling_field import SamplingField
from tests.sampling_values import OTHERS

RANGED = [field for field in FIELDS.values() if field.least is not None]


def check(**values: Any) -> None:
    check_sampling(SamplingParams(**values), temperature_max=2.0, vocabulary=100)


def names(params: type[Any]) -> set[str]:
    return {attribute.name for attribute in dataclasses.fields(params)}


def test_every_field_is_in_the_table() -> None:
    lists = {"stop_token_ids", "logit_bias", "allowed_token_ids", "banned_token_ids"}
    assert names(SamplingParams) - lists == set(FIELDS), "fields that name tokens have checks of their own"
    assert names(DistributionParams) == set(COLUMNS)
    for name, field in FIELDS.items():
        assert (field.name, field.kind, field.neutral) == (name, type(field.neutral), getattr(SamplingParams(), name))


def test_a_field_is_in_the_table_or_refused() -> None:
    assert not REFUSED.keys() & FIELDS.keys(), "a field that is taken and refused"


def test_no_two_fields_have_one_name_in_sglang() -> None:
    theirs = [field.sglang for field in FIELDS.values() if field.sglang is not None]
    assert len(set(theirs)) == len(theirs) and {field.sglang for field in COLUMNS.values()} <= set(theirs)


@pytest.mark.parametrize("field", COLUMNS.values(), ids=lambda field: field.name)
def test_the_neutral_value_is_in_range_and_stored_as_it_is(field: SamplingField) -> None:
    field.check(field.neutral, None if field.most is not None else math.inf)
    assert field.stored(field.neutral) == field.neutral == field.dtype(field.neutral)
    assert field.off is None or field.off < (field.least or 0), "a value cannot mean two things"
    assert field.meaning and field.origin in ("OpenAI", "vLLM")


@pytest.mark.parametrize("field", RANGED, ids=lambda field: field.name)
def test_values_beyond_the_limits_are_named_with_them(field: SamplingField) -> None:
    least = field.kind(field.least)
    most = {"temperature": 2.0, "min_tokens": 16}.get(field.name, field.most)
    assert most is not None
    for value in (least - 1, most + 1, math.nan, math.inf, *([least] if field.above else [])):
        with pytest.raises(BadRequest) as error:
            check(**{field.name: value})
        edge = "greater than" if field.above else "at least"
        assert (
            error.value.message == f"{field.name} is {value}; it must be {edge} {least} and at most {field.kind(most)}"
        )
        assert error.value.param == field.name
    check(**{field.name: most} | ({"max_tokens": 16} if field.name == "min_tokens" else {}))
    if not field.above:
        check(**{field.name: field.least})


def test_requests_are_read_by_the_table() -> None:
    neutral = {name: field.neutral for name, field in COLUMNS.items()}
    absent = dict.fromkeys(COLUMNS)
    assert distribution_of(SimpleNamespace(**absent)) == neutral
    assert distribution_of(SimpleNamespace(**OTHERS)) == OTHERS
    assert distribution_of(SimpleNamespace(**absent | {"top_k": -1, "min_p": 0.25})) == neutral | {"min_p": 0.25}
    assert distribution_of(SimpleNamespace(**absent | {"temperature": 0.0})) == neutral | {"temperature": 0.0}


def test_columns_hold_what_the_rows_ask_for() -> None:
    assert columns_of([SamplingParams(presence_penalty=-1.5)])["presence_penalty"] == -1.5
    columns = columns_of([SamplingParams(), SamplingParams(**OTHERS), SamplingParams(temperature=GREEDY_BELOW / 2)])
    assert columns.keys() == COLUMNS.keys()
    for name, field in COLUMNS.items():
        cold = 0.0 if name == "temperature" else field.neutral
        assert columns[name].dtype == field.dtype
        assert columns[name].tolist() == [field.neutral, OTHERS[name], cold]
