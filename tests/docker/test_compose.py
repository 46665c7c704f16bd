"""The Dockerfile and the compose file as linters and schemas see them, and what both promise of every service."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from aerie.contracts.config import load_config
from tests.docker.conftest import DOCKER, HOME

COMPOSE = DOCKER / "compose.yaml"
PROFILES = {"gpu": ["gpu"], "scale": ["replica", "router"], "obs": ["grafana", "prometheus"], "bench": ["bench"]}


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    return found


def filled(text: str, **variables: str) -> str:
    """Compose's own replacement of ${NAME:-default}."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: variables.get(found[1]) or found[2], text)


def started(services: dict[str, dict[str, Any]], *named: str, profiles: tuple[str, ...] = ()) -> set[str]:
    """What `up` starts: the named services, or all whose profiles are on; and whatever these depend on."""
    chosen = [name for name, one in services.items() if set(one.get("profiles", ())) <= set(profiles)]
    found, left = set[str](), list(named or chosen)
    while left:
        name = left.pop()
        found.add(name)
        left += [other for other in services[name].get("depends_on", ()) if other not in found]
    return found


def tool(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the environment that the tests run in."""
    program = Path(sys.executable).with_name(name)
    if not program.exists():
        pytest.skip(f"no {name} here; it comes with the extra `images`")
    return subprocess.run([str(program), *words], cwd=HOME, capture_output=True, text=True, check=False)


def schema_says(path: Path) -> subprocess.CompletedProcess[str]:
    return tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(path))


def test_hadolint_is_content(tmp_path: Path) -> None:
    done = tool("hadolint", "docker/Dockerfile")
    assert done.returncode == 0, done.stdout + done.stderr
    careless = tmp_path / "Dockerfile"
    careless.write_text("FROM debian\nRUN cd /tmp && apt-get install python3\n", encoding="utf-8")
    assert tool("hadolint", str(careless)).returncode != 0


def test_the_compose_schema_is_met(tmp_path: Path) -> None:
    done = schema_says(COMPOSE)
    assert done.returncode == 0, done.stdout + done.stderr
    misspelt = tmp_path / "compose.yaml"
    misspelt.write_text(
        COMPOSE.read_text(encoding="utf-8").replace("driver: nvidia", "drivr: nvidia"), encoding="utf-8"
    )
    assert "drivr" in schema_says(misspelt).stdout


def test_each_profile_has_its_services(services: dict[str, dict[str, Any]]) -> None:
    assert [name for name, service in services.items() if "profiles" not in service] == ["cpu"]
    found = {
        profile: sorted(name for name, service in services.items() if service.get("profiles") == [profile])
        for profile in PROFILES
    }
    assert found == PROFILES


def test_every_service_is_hardened(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service and "network_mode" not in service and "ipc" not in service, name
        for port in service.get("ports", ()):
            assert str(port).startswith("127.0.0.1:"), f"{name} is open to the network at {port}"


def test_images_of_others_are_pinned_to_a_release(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert "build" in service or re.search(r":v?\d+\.\d+\.\d+", service["image"]), name


def test_secrets_come_from_the_shell(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        for entry in service.get("environment", ()):
            assert "=" not in entry, "a value in the file would be a secret in the file"
    assert services["cpu"]["environment"] == ["AERIE_API_KEY", "HF_TOKEN"]


def test_the_configs_and_files_that_services_name_exist(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        for volume in service.get("volumes", ()):
            source = filled(volume).partition(":")[0]
            assert not source.startswith(".") or (DOCKER / source).exists(), f"{name}: {source}"
        for word in service.get("command", ()):
            default = re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", word)
            assert not default.startswith("configs/") or (HOME / default).is_file(), f"{name}: {default}"
    sweep = yaml.safe_load((HOME / "configs/sweep/compose.yaml").read_text(encoding="utf-8"))
    assert {target["url"] for target in sweep["targets"]} == {"http://cpu:8000"}


def test_a_stop_leaves_time_for_the_drain(services: dict[str, dict[str, Any]]) -> None:
    drain = load_config(HOME / "configs/serve/demo.yaml").server.drain_seconds
    for name in ("cpu", "gpu", "replica"):
        assert float(services[name]["stop_grace_period"].removesuffix("s")) > drain + 5
        assert services[name]["healthcheck"]["test"][-1] == "docker/health.py"


def test_a_gpu_is_reserved_and_never_replaced_in_silence(services: dict[str, dict[str, Any]]) -> None:
    [device] = services["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    assert "engine.device=cuda" in services["gpu"]["command"]
    assert services["gpu"]["shm_size"] and "models:/models" in services["gpu"]["volumes"]


def test_one_s_own_models_and_configs_are_mounted(services: dict[str, dict[str, Any]]) -> None:
    own = {"AERIE_FOLDER": "/srv/mine", "AERIE_CONFIG": "/own/my.yaml", "AERIE_CPU_CONFIG": "/own/my.yaml"}
    for name in ("cpu", "gpu", "replica"):
        assert "/srv/mine:/own:ro" in [filled(volume, **own) for volume in services[name]["volumes"]], name
        assert filled(services[name]["command"][1], **own) == "/own/my.yaml"
    documented = (HOME / "docs/deployment.md").read_text(encoding="utf-8")
    assert all(f"`{variable}`" in documented for variable in own)


def test_a_gpu_is_observed_without_the_demo(services: dict[str, dict[str, Any]]) -> None:
    assert started(services) == {"cpu"}
    assert started(services, profiles=("obs",)) == {"cpu", "grafana", "prometheus"}
    assert started(services, "gpu", "grafana") == {"gpu", "grafana", "prometheus"}
    assert "up gpu grafana " in (HOME / "docs/deployment.md").read_text(encoding="utf-8")
    [job] = yaml.safe_load((DOCKER / "prometheus/prometheus.yaml").read_text(encoding="utf-8"))["scrape_configs"]
    [found] = job["dns_sd_configs"]
    for name in ("cpu", "gpu", "replica"):
        assert found["names"][0] in services[name]["networks"]["default"]["aliases"], name
        assert services[name].get("ports", [":8000"])[0].endswith(f":{found['port']}"), name


def test_the_image_holds_every_package_and_runs_as_nobody_special() -> None:
    ignored = (HOME / ".dockerignore").read_text(encoding="utf-8").split()
    project = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["setuptools"]["packages"]
    assert {f"!{package.partition('.')[0]}" for package in packages} | {"!configs", "!models"} <= set(ignored)
    stages = re.split(r"(?m)^FROM ", (DOCKER / "Dockerfile").read_text(encoding="utf-8"))[1:]
    assert [stage.splitlines()[0].split()[-1] for stage in stages] == ["build", "kernels", "runtime", "gpu", "cpu"]
    assert re.findall(r"(?m)^USER (\S+)", stages[2])[-1] == "10001"
    assert re.findall(r"(?m)^USER (\S+)", stages[3])[-1] == "10001"
