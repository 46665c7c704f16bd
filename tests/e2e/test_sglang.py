"""`engine.kind: sglang` in an environment without SGLang: a line that says how to get it, and code 2."""

import importlib.util
from collections.abc import Callable

import pytest


@pytest.mark.skipif(importlib.util.find_spec("sglang") is not None, reason="SGLang is installed here")
def test_without_sglang_the_start_is_refused(refused: Callable[..., str]) -> None:
    said = refused("engine.kind=sglang")
    assert "SGLang is not installed" in said and "make setup-sglang" in said
