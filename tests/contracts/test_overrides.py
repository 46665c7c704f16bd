"""One `section.key=value` over a config's data."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerie.contracts.config import load_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.overrides import lay_over

TEXTS = {"server.api_key", "model.path"}


def laid(override: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
    data = {} if data is None else data
    lay_over(data, override, texts=TEXTS)
    return data


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("spec.depth=5", {"spec": {"depth": 5}}),
        ("server.api_key=123", {"server": {"api_key": "123"}}),
        ("server.api_key=1.5", {"server": {"api_key": "1.5"}}),
        ("server.api_key=true", {"server": {"api_key": "true"}}),
        ("server.api_key=null", {"server": {"api_key": None}}),
        ("server.api_key='null'", {"server": {"api_key": "null"}}),
        ("model.path=a=b", {"model": {"path": "a=b"}}),
        ("server.cors_origins=[a, b]", {"server": {"cors_origins": ["a", "b"]}}),
        ("engine=native", {"engine": "native"}),
        ("scheduler.overlap=false", {"scheduler": {"overlap": False}}),
    ],
)
def test_values_are_yaml_and_text_stays_text(override: str, expected: dict[str, Any]) -> None:
    assert laid(override) == expected


def test_what_is_beside_it_stays() -> None:
    data = {"spec": {"depth": 1, "head": "auto"}, "model": {"path": "x"}}
    assert laid("spec.depth=2", data) == {"spec": {"depth": 2, "head": "auto"}, "model": {"path": "x"}}
    assert laid("spec.new.deep=1", data)["spec"]["new"] == {"deep": 1}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("spec.depth", "not an override; write section.key=value"),
        ("=5", "not an override"),
        ("spec.depth=[1", "spec.depth is '\\[1', which is not YAML"),
        ("server.api_key=a: b: c", "not YAML .*; quotes help"),
        ("server.api_key=", "server.api_key is empty; write server.api_key=null"),
        ("model.path= ", "model.path is empty"),
    ],
)
def test_what_is_no_override_says_how_one_looks(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        laid(override)


def test_a_value_is_no_section() -> None:
    with pytest.raises(ConfigError, match=r"'engine\.kind' goes through 'engine', which holds a value") as caught:
        laid("engine.kind=native", {"engine": "sglang"})
    assert caught.value.param == "engine.kind"


def test_a_section_that_a_file_leaves_empty_can_be_laid_over(tmp_path: Any) -> None:
    """`spec:` with nothing below it is null in YAML."""
    path = tmp_path / "c.yaml"
    path.write_text("model: {path: x}\nspec:\n", encoding="utf-8")
    assert load_config(path, ["spec.depth=2"]).spec.depth == 2


@given(st.text(max_size=30))
def test_any_text_ends_in_a_value_or_a_config_error(text: str) -> None:
    try:
        assert set(laid(f"spec.depth={text}")) == {"spec"}
    except ConfigError as error:
        assert error.param == "spec.depth"
