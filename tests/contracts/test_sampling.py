"""The table of sampling fields says all there is to say about each, and what is made from it agrees with it."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from aerie.contracts.errors import BadRequest
from aerie.contracts.sampling import (
    COLUMNS,
    FIELDS,
    GREEDY_BELOW,
    DistributionParams,
    SamplingParams,
    check_sampling,
    columns_of,
    distribution_of,
)
from aerie.contracts.sampling_field import SamplingField

RANGED = [field for field in FIELDS.values() if field.least is not None]


def check(**values: Any) -> None:
    check_sampling(SamplingParams(**values), temperature_max=2.0, vocabulary=100)


def names(params: type[Any]) -> set[str]:
    return {attribute.name for attribute in dataclasses.fields(params)}


def test_every_field_is_in_the_table() -> None:
    assert names(SamplingParams) - {"stop_token_ids"} == set(FIELDS), "stop_token_ids has a check of its own"
    assert names(DistributionParams) == set(COLUMNS)
    for name, field in FIELDS.items():
        assert (field.name, field.kind, field.neutral) == (name, type(field.neutral), getattr(SamplingParams(), name))


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
    @dataclasses.dataclass
    class Request:
        temperature: float | None = None
        top_p: float | None = 0.5
        top_k: int | None = -1
        min_p: float | None = 0.25

    assert distribution_of(Request()) == {"temperature": 1.0, "top_p": 0.5, "top_k": 0, "min_p": 0.25}
    assert distribution_of(Request(temperature=0.0, top_k=0))["temperature"] == 0.0


def test_columns_hold_what_the_rows_ask_for() -> None:
    cold = GREEDY_BELOW / 2
    columns = columns_of([SamplingParams(temperature=cold, top_k=7), SamplingParams(temperature=0.7, min_p=0.1)])
    expected = {"temperature": [0.0, 0.7], "top_p": [1.0, 1.0], "top_k": [7, 0], "min_p": [0.0, 0.1]}
    assert columns.keys() == expected.keys()
    for name, values in expected.items():
        assert columns[name].dtype == COLUMNS[name].dtype
        assert np.array_equal(columns[name], np.array(values, COLUMNS[name].dtype))
