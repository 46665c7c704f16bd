"""The dashboard as Grafana will find it: provisioned, drawn without overlaps, every panel explained."""

import json
from itertools import combinations
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
