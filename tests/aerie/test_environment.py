"""What containers and managed platforms say in the environment, and that the command line comes after it."""

import pytest
from typer.testing import CliRunner

from aerie.commands.app import app
from aerie.contracts.config import Config, load_config
from aerie.contracts.errors import ConfigError
from aerie.environment import overrides_from
from tests.e2e.conftest import CONFIG, HOME

PLATFORM = {"AIP_HTTP_PORT": "8080", "AIP_HEALTH_ROUTE": "/alive", "AIP_PREDICT_ROUTE": "/predict"}


def config_from(environment: dict[str, str]) -> Config:
    return load_config(HOME / CONFIG, overrides_from(environment))


def test_a_platform_chooses_port_and_routes() -> None:
    server = config_from(PLATFORM).server
    assert (server.host, server.port) == ("0.0.0.0", 8080), "it asks from outside of the container"
    assert (server.health_route, server.predict_route) == ("/alive", "/predict")


def test_an_empty_variable_counts_as_none() -> None:
    assert overrides_from(dict.fromkeys(PLATFORM, "") | {"AERIE_API_KEY": ""}) == []
    assert config_from({}).server.host == "127.0.0.1"


def test_text_stays_text() -> None:
    assert config_from({"AERIE_API_KEY": "0123"}).server.api_key == "0123", "YAML would read an octal number"


def test_a_port_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match=r"server\.port"):
        config_from({"AIP_HTTP_PORT": "http"})


def test_serve_reads_it_and_the_command_line_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Config] = []
    monkeypatch.setattr("aerie.serve.serve", lambda config, announce: served.append(config) or 0)
    for name, value in PLATFORM.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(app, ["serve", str(HOME / CONFIG), "server.predict_route=/mine"])
    assert done.exit_code == 0, done.output
    [config] = served
    assert (config.server.port, config.server.predict_route) == (8080, "/mine")
