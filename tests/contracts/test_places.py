"""What a relative path means: in a file, on the command line; and where things are kept."""

from pathlib import Path

import pytest

from aerie.contracts import places
from aerie.contracts.config import load_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.places import cache, find, named_in, shipped
from tests.house import HOME


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that is not a checkout and has a `model` of its own."""
    folder = tmp_path / "elsewhere"
    (folder / "model").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def test_a_file_s_paths_are_relative_to_it_and_overrides_to_the_working_directory(
    elsewhere: Path, tmp_path: Path
) -> None:
    deployment = tmp_path / "deployment"
    for name in ("model", "heads/one", "org/here"):
        (deployment / name).mkdir(parents=True)
    file = deployment / "serve.yaml"
    file.write_text("model: {path: model}\nspec: {head: ./heads/one}\nserver: {chat_template: ../chat.jinja}\n")
    config = load_config(file, [])
    assert config.model.path == str(deployment / "model") and config.spec.head == str(deployment / "heads/one")
    assert config.server.chat_template == str(tmp_path / "chat.jinja")
    assert load_config(Path("../deployment/serve.yaml"), []).model.path == "../deployment/model"
    over = load_config(file, ["model.path=model", "spec.head=none"])
    assert over.model.path == "model" and over.spec.head == "none"
    file.write_text("model: {path: org/here}\nspec: {head: org/hub}\n")
    config = load_config(file, [])
    assert config.model.path == str(deployment / "org/here") and config.spec.head == "org/hub"


def test_behind_a_symbolic_link_a_path_is_not_shortened_into_another(tmp_path: Path) -> None:
    (tmp_path / "real/inner").mkdir(parents=True)
    (tmp_path / "real/model").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real/inner")
    assert Path(named_in(tmp_path / "link", "../model")).samefile(tmp_path / "real/model")


def test_what_ships_is_found_from_anywhere_and_a_file_of_one_s_own_comes_first(elsewhere: Path) -> None:
    assert find("configs/serve/demo.yaml") == HOME / "configs/serve/demo.yaml"
    assert load_config(find("configs/serve/demo.yaml")).model.path == str(HOME / "models/demo/target")
    assert named_in(elsewhere, "models/demo/head") == str(HOME / "models/demo/head")
    own = elsewhere / "configs/serve/demo.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("{}")
    assert find("configs/serve/demo.yaml") == Path("configs/serve/demo.yaml")
    assert find("nowhere/at/all") == Path("nowhere/at/all")


def test_a_checkout_keeps_things_in_build_and_a_wheel_in_the_user_s_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache() == HOME / "build" and shipped() == HOME
    (tmp_path / "aerie").mkdir()
    (tmp_path / "aerie/__init__.py").touch()
    monkeypatch.setattr(places, "_TOP", tmp_path / "aerie")
    assert shipped() == tmp_path / "aerie"
    monkeypatch.setenv("HOME", "/home/somebody")
    for named, meant in (
        ("/var/cache/own", "/var/cache/own/aerie"),
        ("relative", "/home/somebody/.cache/aerie"),
        ("", "/home/somebody/.cache/aerie"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", named)
        assert cache() == Path(meant)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(ConfigError, match=r"no home folder .* set XDG_CACHE_HOME"):
        cache()
