"""Models by hub id: what is fetched and what never is, pins, the offline switch, and what every failure says."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerie.hub import is_hub_id
from tests.aerie import fake_hub
from tests.aerie.fake_hub import COMMIT, OTHER
from tests.house import HOME

ASK = """
import json, sys
from aerie.hub import fetch
from aerie.contracts.errors import ConfigError
for name, revision, offline in json.loads(sys.argv[1]):
    try:
        folder = fetch(name, revision, offline=offline, param="model.path")
        told = {"folder": str(folder), "files": sorted(path.name for path in folder.iterdir())}
    except ConfigError as error:
        told = {"message": error.message, "param": error.param}
    print(json.dumps(told))
"""
Fetch = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def fetch(tmp_path: Path) -> Fetch:
    """Asks a hub in a process of its own, since huggingface_hub reads its settings when it is imported."""

    def ask(url: str, *wanted: tuple[str, str | None, bool], **environment: str) -> list[dict[str, Any]]:
        given = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        given |= {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1", **environment}
        words = [sys.executable, "-c", ASK, json.dumps(wanted)]
        done = subprocess.run(words, cwd=HOME, env=given, capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return ask


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen/Qwen3-8B", True),
        ("org/model.v1_2", True),
        ("model", False),
        ("a/b/c", False),
        ("/a/b", False),
        ("./b", False),
        ("../b", False),
        ("a/..", False),
        ("org/", False),
        ("org/na me", False),
    ],
)
def test_what_is_a_hub_id(name: str, expected: bool) -> None:
    assert is_hub_id(name) is expected


def test_weights_configs_and_templates_come_and_nothing_else(fetch: Fetch) -> None:
    with fake_hub.running() as hub:
        first, pinned, branch, offline = fetch(
            hub.url,
            ("org/model", None, False),
            ("org/model", COMMIT, False),
            ("org/model", "v2", False),
            ("org/model", None, True),
        )
    wanted = ["README.md", "chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert first["files"] == wanted
    assert not [path for path in hub.asked if path.endswith((".bin", ".py"))], "not even asked for"
    assert first["folder"].endswith(COMMIT) and pinned["folder"] == first["folder"]
    assert branch["folder"].endswith(OTHER), "a revision is another folder"
    assert offline == first, "what was fetched is there without network"


def test_a_cached_model_outlives_its_hub(fetch: Fetch) -> None:
    with fake_hub.running() as hub:
        [there] = fetch(hub.url, ("org/model", None, False))
    assert fetch(hub.url, ("org/model", None, False)) == [there], "nothing answers any more"


def test_failures_say_what_to_do(fetch: Fetch) -> None:
    with fake_hub.running() as hub:
        reported = fetch(
            hub.url,
            ("org/gated", None, False),
            ("org/nothing", None, False),
            ("org/model", "v3", False),
            ("org/pickled", None, False),
            ("org/never-fetched", None, True),
        )
    gated, nothing, revision, pickled, offline = (one["message"] for one in reported)
    assert "org/gated is gated: accept its terms on the hub, then set HF_TOKEN" in gated
    assert "the hub has no org/nothing, or it is private" in nothing
    assert "no such revision: org/model at v3" in revision
    assert "org/pickled has no safetensors" in pickled and "docs/models.md" in pickled
    assert "org/never-fetched is not in the local cache" in offline and "model.offline or HF_HUB_OFFLINE" in offline
    assert {one["param"] for one in reported} == {"model.path"}


def test_no_network_and_the_switch_of_the_hub_itself(fetch: Fetch) -> None:
    [unreachable] = fetch("http://127.0.0.1:1", ("org/model", None, False))
    assert "org/model is not a folder here, and the hub did not give it" in unreachable["message"]
    assert "serve a local folder" in unreachable["message"]
    with fake_hub.running() as hub:
        [silent] = fetch(hub.url, ("org/model", None, False), HF_HUB_OFFLINE="1")
        assert not hub.asked, "the network is not asked"
    assert "is not in the local cache" in silent["message"]
