"""What a person names becomes a config whose model is a folder."""

from pathlib import Path

import pytest

from aerie.contracts.errors import ConfigError
from aerie.resolve import resolve_config, with_local_model
from tests.house import HOME


def test_a_file_a_folder_and_their_overrides() -> None:
    file = resolve_config(str(HOME / "configs/serve/demo.yaml"), ["server.port=1"])
    assert file.model.served_name == "aerie-demo" and file.server.port == 1
    folder = with_local_model(resolve_config(str(HOME / "models/demo/target") + "/", []))
    assert folder.model.served_name == "target" and Path(folder.model.path).is_dir()


@pytest.mark.parametrize(
    ("target", "overrides", "said"),
    [
        ("nowhere.yaml", [], "no config file at nowhere.yaml"),
        ("a/b/c", [], "no model folder at a/b/c, and it is not a hub id"),
        (str(HOME / "configs/serve/demo.yaml"), ["model.pth=x"], "did you mean 'model.path'"),
        (str(HOME / "configs/serve/demo.yaml"), ["spec.depth"], "not an override"),
        (str(HOME / "configs/serve/demo.yaml"), ["spec.depth=deep"], "spec.depth is 'deep'"),
    ],
)
def test_what_cannot_be_resolved_says_why(target: str, overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        with_local_model(resolve_config(target, overrides))


def test_a_hub_id_without_network_is_an_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"nobody/nothing.*serve a local folder"):
        with_local_model(resolve_config("nobody/nothing", []))


DEMO = str(HOME / "configs/serve/demo.yaml")


def head_of(
    monkeypatch: pytest.MonkeyPatch, cached: Path | None, *overrides: str
) -> tuple[str, list[tuple[str, str | None]]]:
    """The head that a config ends up with, and what was fetched for it, where `cached` is what the hub's cache has."""
    import aerie.resolve
    from aerie.spec.checkpoints import registry

    fetched: list[tuple[str, str | None]] = []

    def fetch(name: str, revision: str | None, *, offline: bool, param: str) -> Path:
        assert param == "spec.head"
        fetched.append((name, revision))
        return Path("/cache/snapshots/pinned")

    monkeypatch.setattr(aerie.resolve, "fetch", fetch)
    monkeypatch.setattr(registry, "_cached", lambda repo: cached)
    return with_local_model(resolve_config(DEMO, list(overrides))).spec.head, fetched


def test_a_head_in_the_cache_is_not_fetched_but_its_revision_is(monkeypatch: pytest.MonkeyPatch) -> None:
    cached = Path("/cache/snapshots/main")
    assert head_of(monkeypatch, cached, "spec.head=org/head") == ("org/head", [])
    pinned = ("/cache/snapshots/pinned", [("org/head", "v2")])
    assert head_of(monkeypatch, cached, "spec.head=org/head", "spec.revision=v2") == pinned
    assert head_of(monkeypatch, None, "spec.head=org/head") == ("/cache/snapshots/pinned", [("org/head", None)])
    assert head_of(monkeypatch, None, "spec.head=models/demo/head", "spec.revision=v2") == ("models/demo/head", [])


def test_a_head_that_auto_finds_and_cannot_get_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import aerie.resolve
    from aerie.spec.checkpoints import registry

    def fetch(name: str, revision: str | None, *, offline: bool, param: str) -> Path:
        raise ConfigError(f"no network for {name}", param=param)

    monkeypatch.setattr(aerie.resolve, "fetch", fetch)
    monkeypatch.setattr(registry, "head_of", lambda names, model, pairs: "org/head")
    monkeypatch.setattr(registry, "_cached", lambda repo: None)
    assert with_local_model(resolve_config(DEMO, ["spec.head=auto"])).spec.head == "none"
    assert "decoding without speculation: no network for org/head" in caplog.text
    with pytest.raises(ConfigError, match="no network for org/head"):
        with_local_model(resolve_config(DEMO, ["spec.head=org/head"]))
