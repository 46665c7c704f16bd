"""The official Node client, unchanged."""

import json
import shutil
import subprocess

import pytest

from tests.clients.conftest import Answer
from tests.house import HOME
from tests.patience import PATIENCE

MODULES = HOME / "build/clients/node_modules"


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
@pytest.mark.skipif(not MODULES.is_dir(), reason="the Node client is not installed: make setup-clients with npm")
def test_the_node_client(url: str) -> None:
    script = MODULES.parent / "client.mjs"  # modules are found beside the script
    shutil.copyfile(HOME / "tests/clients/client.mjs", script)
    ran = subprocess.run(["node", str(script), url], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    for name in ("parsed", "streamed", "response"):
        Answer.model_validate(found[name])
    assert len(found["calls"]) == 2 and {call["place"] for call in found["calls"]} <= {"here", "there"}
    assert found["text"] and found["created"]
    assert (found["types"][0], found["types"][-1]) == ("response.created", "response.completed")
    assert found["items"][0] == "function_call"
