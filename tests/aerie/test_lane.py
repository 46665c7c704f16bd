"""What a deployment is warned of when its lane is chosen."""

import pytest

from aerie.engine.lanes import cores
from aerie.lane import warn_of_waiting


def test_more_threads_than_cores_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(cores, "_quotas", lambda: [2.5])
    warn_of_waiting(2)
    assert not caplog.text
    warn_of_waiting(4)
    assert "engine.threads is 4, and this process can use 2.5 cores" in caplog.text
    caplog.clear()
    monkeypatch.setattr(cores, "_quotas", lambda: [0.5])
    warn_of_waiting(1)
    assert not caplog.text, "with half a core, too, one thread serves"
