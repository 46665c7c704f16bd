"""Two replicas of Aerie's own engine behind SGLang's gateway, one of them killed under load: scripts/scale_out.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import HOME


@pytest.mark.timeout(600)
def test_no_request_is_lost_that_had_not_begun(tmp_path: Path) -> None:
    words = ["--requests", "24", "--concurrency", "4", "--max-tokens", "48", "--logs", str(tmp_path)]
    settings = ["engine.threads=1", "engine.kv_tokens=8192", "model.dtype=float32"]
    for setting in settings:
        words += ["--set", setting]
    command = [sys.executable, "scripts/scale_out.py", *words]
    process = subprocess.Popen(command, cwd=HOME, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate(timeout=540)
    finally:
        process.terminate()
        process.wait(50)
    logs = "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in tmp_path.glob("*.log"))
    assert process.returncode == 0, f"{output}\n{errors}\n{logs}"
    line = json.loads(output)
    assert line["lost"] == 0 and line["ended"] + line["cut_while_streaming"] == 24
    assert line["cut_while_streaming"] <= 4  # no more than ran at once
    assert len(line["requests_by_replica"]) == 2 and line["replicas_at_the_end"] == 2
