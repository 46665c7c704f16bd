"""What a person names becomes a config whose model is a folder."""

from pathlib import Path

import pytest

from aerie.resolve import resolve_config, with_local_model
from contracts.errors import ConfigError

HOME = Path(__file__).parent.parent.parent


def test_a_file_a_folder_and_their_overrides() -> None:
    file = resolve_config(str(HOME / "configs/serve/demo.yaml"), ["server.port=1"])
    assert file.model.served_name == "aerie-demo" and file.server.port == 1
    folder = with_local_model(resolve_config(str(HOME / "models/demo/target") + "/", []))
    assert folder.model.served_name == "target" and Path(folder.model.path).is_dir()


@pytest.mark.parametrize(
    ("target", "overrides", "said"),
    [
        ("nowhere.yaml", [], "no config file at nowhere.yaml"),
        ("a/b/c", [], "no model folder at a/b/c, and it is no hub id"),
        (str(HOME / "configs/serve/demo.yaml"), ["model.pth=x"], "did you mean 'model.path'"),
        (str(HOME / "configs/serve/demo.yaml"), ["spec.depth"], "no override"),
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
