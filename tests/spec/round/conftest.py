"""Workers that record their steps, on a stand-in for a GPU's runtime."""

import pytest

from tests.engine.stand_in import HeldDense, StandIn


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Workers are built for it; their graphs are recorded for few buckets, so that this takes a second."""
    made = StandIn()
    monkeypatch.setattr("aerie.native.kernels.table.missing", lambda: "a stand-in has none")  # they are a CPU's
    monkeypatch.setattr("aerie.spec.build.runtime_of", lambda device: made)
    monkeypatch.setattr("aerie.engine.build.runtime_of", lambda device: made)
    monkeypatch.setattr("aerie.spec.drafters.head_drafter.make_attention", HeldDense)
    monkeypatch.setattr("aerie.engine.build.make_attention", HeldDense)
    for module in ("aerie.spec.build", "aerie.engine.step.plain_graphs"):
        monkeypatch.setattr(f"{module}.row_buckets", lambda most: [2, 4])
    return made
