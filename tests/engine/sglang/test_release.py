"""Which SGLang is served: none, another and the right one."""

import importlib.metadata

import pytest

from aerie.contracts.errors import ConfigError
from aerie.engine.sglang import release


def test_without_sglang_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ConfigError, match=r"SGLang is not installed in .*`make setup-sglang`") as caught:
        release.engine_release()
    assert caught.value.param == "engine.kind"


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20", "0.5.20.post1", "0.5.23"])
def test_the_whole_engine_runs_on_a_range(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    assert release.engine_release() == version


@pytest.mark.parametrize("version", ["0.5.16", "0.5.24", "0.4.23", "1.0.0"])
def test_other_releases_are_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(ConfigError, match=rf"SGLang {version} .* runs on 0\.5\.17 to 0\.5\.23"):
        release.engine_release()


def test_the_model_layer_runs_on_the_pinned_one_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.5.22")
    with pytest.raises(ConfigError, match=r"0\.5\.22 .* sglang-model runs on 0\.5\.23"):
        release.model_release()
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.5.23")
    assert release.model_release() == "0.5.23"
