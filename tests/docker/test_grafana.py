"""The dashboard as Grafana will find it: provisioned, drawn without overlaps, every panel explained."""

import json
import os
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from tests.docker.conftest import DOCKER

PROVISIONING = DOCKER / "grafana/provisioning"


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCKER / "grafana/dashboards/aerie.json").read_text(encoding="utf-8"))
    return found


def read(path: str) -> Any:
    return yaml.safe_load((PROVISIONING / path).read_text(encoding="utf-8"))


def test_it_lies_where_grafana_looks() -> None:
    grafana = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]["grafana"]
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"] if volume.startswith("./"))
    [provider] = read("dashboards/aerie.yaml")["providers"]
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning"
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/aerie.json"


def start(folder: Path, **environment: str) -> tuple[str, str]:
    """What start.sh prints, and the password that it gives to Grafana."""
    grafana = folder / "grafana"
    grafana.write_text('#!/bin/sh\necho "$@ $(cat)" > $GF_PATHS_DATA/reset\n', encoding="ascii")
    grafana.chmod(0o755)
    given = {"PATH": f"{folder}:{os.environ['PATH']}", "GF_PATHS_DATA": str(folder), **environment}
    words = ["sh", str(DOCKER / "grafana/start.sh"), "sh", "-c", "echo ${GF_SECURITY_ADMIN_PASSWORD-none}"]
    done = subprocess.run(words, env=given, capture_output=True, text=True, check=True)
    *said, password = done.stdout.splitlines()
    return "\n".join(said), password


def test_its_password_is_drawn_kept_and_printed(tmp_path: Path) -> None:
    said, password = start(tmp_path)
    assert len(password) >= 20 and f"password {password} " in said
    assert (tmp_path / "admin-password").stat().st_mode & 0o077 == 0
    (tmp_path / "grafana.db").touch()
    assert start(tmp_path) == (said, password), "the next start has the same"
    (tmp_path / "other").mkdir()
    assert start(tmp_path / "other")[1] != password


def test_a_password_of_one_s_own_is_taken_and_not_printed(tmp_path: Path) -> None:
    said, password = start(tmp_path, GRAFANA_PASSWORD="mine and only mine")
    assert password == "mine and only mine" and password not in said
    assert not (tmp_path / "reset").exists(), "a first start needs no reset"
    (tmp_path / "grafana.db").touch()
    start(tmp_path, GRAFANA_PASSWORD="another")
    assert (tmp_path / "reset").read_text() == "cli admin reset-admin-password --password-from-stdin another\n"
    said, password = start(tmp_path)
    assert password == "none" and "GRAFANA_PASSWORD" in said, "it has one, and it is not ours to know"


def test_it_starts_through_the_script(tmp_path: Path) -> None:
    grafana = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]["grafana"]
    assert grafana["entrypoint"] == ["sh", "/var/lib/aerie/start.sh"] and grafana["command"] == ["/run.sh"]
    assert "./grafana/start.sh:/var/lib/aerie/start.sh:ro" in grafana["volumes"]
    assert grafana["environment"]["GRAFANA_PASSWORD"] is None, "from the shell, in no file"


def test_every_panel_asks_the_provisioned_source_and_says_what_it_shows() -> None:
    [source] = read("datasources/prometheus.yaml")["datasources"]
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in services
    for panel in dashboard()["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == source["uid"], panel["title"]
            assert panel["description"].endswith("."), panel["title"]
            references = [target["refId"] for target in panel["targets"]]
            assert references and len(set(references)) == len(references), panel["title"]


def test_panels_have_places_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
