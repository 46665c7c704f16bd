"""A breakpoint where the docs say that a token is accepted is hit by a served request."""

from pathlib import Path

import pytest

from tests.e2e.conftest import QUESTION, Server
from tests.house import HOME
from tests.patience import until

ACCEPT = HOME / "spec/trees/accept.py"
LINE = 1 + ACCEPT.read_text(encoding="utf-8").splitlines().index(
    "    places = torch.arange(choices.shape[1], device=choices.device)  # [M]"
)
WATCH = """
import sys

def on_call(frame, event, argument):
    return on_line if frame.f_code.co_filename == {file!r} else None

def on_line(frame, event, argument):
    if event == "line" and frame.f_lineno == {line}:
        sys.settrace(None)
        with open({hits!r}, "a") as hits:
            hits.write(frame.f_code.co_name)
    return on_line

sys.settrace(on_call)
"""


@pytest.mark.slow
def test_accept_is_where_a_served_token_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A debugger stops by file and line, as this watch does in every process of a server."""
    hits = tmp_path / "hits"
    (tmp_path / "sitecustomize.py").write_text(WATCH.format(file=str(ACCEPT), line=LINE, hits=str(hits)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Server("engine.kernels=torch", "spec.planner=fixed") as server, server.client() as client:
        answer = client.chat.completions.create(model=server.name, messages=QUESTION, temperature=0, max_tokens=12)
        assert answer.usage is not None and answer.usage.completion_tokens
        until(hits.exists, "no draft was accepted or refused in spec/trees/accept.py")
        assert server.end() == 0
    assert hits.read_text() == "accept"
