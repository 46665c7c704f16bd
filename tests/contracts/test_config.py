"""What a deployment may say: bounds of its settings, and keys that nobody knows."""

import pytest

from aerie.contracts.config import load_config, parse_config
from aerie.contracts.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("spec.dept=3", "spec.depth"),
        ("specs.depth=3", "spec"),
        ("srv.port=1", "server"),
        ("depth=3", "spec.depth"),
        ("temperature_max=1", "limits.temperature_max"),
    ],
)
def test_an_unknown_key_names_the_nearest(given: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown key .*did you mean '{meant}'"):
        load_config(None, [given])


def test_a_key_like_no_other_names_the_sections() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'zzz'; known sections: model, engine, .*limits"):
        load_config(None, ["zzz=3"])


@pytest.mark.parametrize(
    "setting",
    [
        "model.max_length=1",
        "server.keep_alive_seconds=-1",
        "server.ping_seconds=0",
        "server.ping_seconds=.nan",
        "server.drain_seconds=-0.1",
        "server.drain_seconds=.inf",
        "limits.max_body_bytes=0",
        "limits.max_stop_strings=-1",
        "limits.max_stop_length=0",
        "limits.temperature_max=.nan",
        "limits.temperature_max=.inf",
        "limits.temperature_max=-1",
        "limits.queue_seconds=0",
        "limits.total_seconds=.nan",
        "spec.edge_temperatures=[1, 0]",
        "spec.edge_temperatures=[.nan]",
        "spec.draft_temperature=.nan",
        "engine.memory_share=.nan",
    ],
)
def test_a_setting_that_would_do_harm_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=setting.partition("=")[0].replace(".", r"\.") + ".* is .*: Input should be"):
        load_config(None, [setting])


def test_an_empty_key_is_no_key() -> None:
    with pytest.raises(ConfigError, match=r"server\.api_key is ''"):
        parse_config({"server": {"api_key": ""}})
