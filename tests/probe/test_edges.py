"""The edges of filters are where the engine cuts, and a token that a rounding carries over one is explained."""

import math
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.contracts.config import Config
from aerie.contracts.messages import Generate
from aerie.contracts.sampling import SamplingParams
from aerie.engine.sampling.choose import filtered
from aerie.probe.drive import ask
from aerie.probe.edges import filter_edges
from aerie.probe.margins import Divergence, Margins
from tests.probe.conftest import PROMPTS

FILTERS: list[tuple[str, dict[str, Any]]] = [
    ("top_k", {"top_k": 5}),
    ("top_p", {"top_p": 0.8}),
    ("min_p", {"min_p": 0.3}),
]


def asked(**sampling: Any) -> Generate:
    return msgspec.structs.replace(ask(PROMPTS, [1.0], max_tokens=4)[0], sampling=SamplingParams(**sampling))


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32),
    top_k=st.sampled_from([0, 1, 3, 40, 64, 99]),
    top_p=st.sampled_from([1.0, 0.99, 0.7, 0.2, 1e-6]),
    min_p=st.sampled_from([0.0, 0.02, 0.4, 1.0]),
)
def test_inside_is_what_the_engine_keeps(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    scaled = 2 * torch.randn(64, generator=torch.Generator().manual_seed(seed))
    kept = filtered(scaled[None], *(torch.tensor([value]) for value in (min_p, top_k, top_p)))[0] > -math.inf
    nearest = filter_edges(scaled, SamplingParams(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p)).nearest
    reported = nearest.abs() > 1e-5
    assert torch.equal((nearest >= 0)[reported], kept[reported]) and int(reported.sum()) > 60


@pytest.mark.parametrize(("name", "filters"), FILTERS)
def test_a_token_at_an_edge_needs_no_more_than_its_distance(name: str, filters: dict[str, Any]) -> None:
    """The nearest token outside is the best by far: its own edge is all that is between it and the choice."""
    torch.manual_seed(3)
    scaled = 2 * torch.randn(64)
    sampling = SamplingParams(temperature=1.0, **filters)
    edges = filter_edges(scaled, sampling)
    outside = edges.nearest.masked_fill(edges.nearest >= 0, -math.inf)
    token = int(outside.argmax())
    z = scaled.clone()
    z[token] = scaled.max() + 50
    needed = edges.needed(z, token)
    assert needed.edge == name and needed.gap == pytest.approx(-float(outside.max()))
    best = int(z.masked_fill(edges.nearest < 0, -math.inf).argmax())
    assert edges.needed(z, best) == (0.0, None)
    half = needed.gap / 2 + 1e-3
    nudged = scaled + torch.where(scaled > scaled[token], -half, half)
    assert float(filter_edges(nudged, sampling).nearest[token]) >= 0, "that much carries it over the edge"


@pytest.mark.parametrize(("name", "filters"), FILTERS)
def test_a_first_difference_at_an_edge_is_explained_by_it(config: Config, name: str, filters: dict[str, Any]) -> None:
    """The best of all by logits / T + g stands just outside in one answer, just inside in the other."""
    margins, found = Margins(config), []
    for seed in range(20):
        request = asked(temperature=1.5, seed=seed, **filters)
        choice = margins.choice(request, [])
        token = int(choice.z.argmax())
        if token != choice.best[0]:
            found.append(margins.divergence(request, [choice.best[0]], [token]))
            assert found[-1] is not None and found[-1].gap == pytest.approx(-float(choice.edges.nearest[token]))
    assert len(found) > 1 and all(one is not None and one.edge == name for one in found)


def test_far_from_every_edge_nothing_is_explained(config: Config) -> None:
    margins = Margins(config)
    request = asked(temperature=1.0, seed=1, top_k=2)
    choice = margins.choice(request, [])
    worst = int(choice.edges.nearest.argmin())
    found = margins.divergence(request, [choice.best[0]], [worst])
    assert found is not None and found.edge == "top_k" and not found.explained
    near = Divergence("a", 0, (1, 2), margin=9.0, gap=0.01, rounding=0.04, edge="top_p")
    assert near.explained and not near.excused, "a wide margin says nothing at an edge"
