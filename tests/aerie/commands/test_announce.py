"""What is printed at the start: what it takes, what is set, how to ask; never a secret."""

import pytest

from aerie.commands.announce import announce
from aerie.contracts.config import load_config
from aerie.contracts.messages import Ready
from tests.house import HOME

READY = Ready(max_length=64, vocabulary=9, end_ids=[], report={"head_bytes": 3 << 20, "head_share": 0.25, "head": "h"})


def said(capsys: pytest.CaptureFixture[str], *settings: str) -> str:
    announce(load_config(HOME / "configs/serve/demo.yaml", list(settings)))(READY, "http://127.0.0.1:1")
    return capsys.readouterr().out


def test_what_it_takes_and_what_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    printed = said(capsys, "spec.depth=3", "scheduler.overlap=false")
    assert "head_bytes         3.0 MiB" in printed and "head_share         25.0 %" in printed
    assert "depth=3" in printed and "overlap=false" in printed and " prefill_chunk=" not in printed
    assert 'api_key="none"' in printed and "Authorization" not in printed


def test_a_key_is_asked_for_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    printed = said(capsys, "server.api_key=sk-secret")
    assert "sk-secret" not in printed and 'api_key="***"' in printed
    assert "-H 'Authorization: Bearer KEY'" in printed and 'api_key="KEY"' in printed
