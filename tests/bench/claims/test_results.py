"""Results: what a question selects, and every fault that keeps a file from carrying a claim."""

import json
from pathlib import Path

import pytest
import yaml

from aerie.bench.claims.results import EXCEPTIONS, ClaimError, Results, at, published
from aerie.bench.origin import WHEN
from tests.bench.claims.conftest import CELLS, Publish


def test_a_question_selects_cells(results: Results, publish: Publish) -> None:
    publish()
    assert results.select("a.json") == CELLS
    assert results.select("a.json#means") == CELLS[:1]
    assert results.select("a.json mode=chain rows=8.0") == [CELLS[3]]
    assert results.select("a.json 'shape=none|other' speed!=100") == [CELLS[2]]
    assert results.select("a.json shape=3,1,4 share!=None") == [CELLS[1]]


@pytest.mark.parametrize("question", ["b.json", "a.json mode=tree", "a.json#nothing mode=off", "a.json 'mode=off"])
def test_a_question_without_an_answer(question: str, results: Results, publish: Publish) -> None:
    publish()
    with pytest.raises(ClaimError):
        results.select(question)


def test_keys_lead_into_objects_and_lists() -> None:
    cell = {"ttft": {"p50": 2}, "positions": [3, 4]}
    assert [at(cell, key) for key in ("ttft.p50", "positions.1", "positions.2", "ttft.p99", "none.p50")] == [
        2,
        4,
        None,
        None,
        None,
    ]


def test_a_sound_result_has_no_fault(results: Results, publish: Publish) -> None:
    publish()
    assert results.faults("a.json") == {}


def test_planted_faults_are_found(home: Path, results: Results, publish: Publish) -> None:
    publish("dirty.json", dirty=True)
    publish("unmarked.json", dirty=None, commit=None)
    publish("unchecked.json", measured=None)
    publish("stale.json", measured={"engine": "0", "configs/gone.yaml": "1"})
    cell = {"status": "ok", "window_seconds": 11.0, "requests": 199, "provenance": {"dirty": False, "measured": {}}}
    (home / "bench/results/short.jsonl").write_text(json.dumps(cell) + "\n" + json.dumps(cell | {"status": "failed"}))
    assert [sorted(results.faults(name)) for name in ("dirty.json", "unmarked.json", "unchecked.json")] == [
        ["dirty"],
        ["dirty"],
        ["unchecked"],
    ]
    assert results.faults("stale.json") == {"stale": "is older than configs/gone.yaml, engine"}
    assert sorted(results.faults("short.jsonl")) == ["short"], "another server's cell needs no digests"


def test_older_results_say_it_in_their_commit(results: Results, publish: Publish) -> None:
    publish("old.json", commit="0123-dirty")
    assert results.faults("old.json") == {}, "what is said outright counts"
    results = Results(results.folder)
    path = results.folder / "old.json"
    report = json.loads(path.read_text())
    del report["provenance"]["dirty"]
    path.write_text(json.dumps(report))
    assert sorted(results.faults("old.json")) == ["dirty"]


def test_code_that_changed_makes_a_result_stale(home: Path, results: Results, publish: Publish) -> None:
    publish()
    (home / "engine/step.py").write_text("step = 2\n")
    assert list(published(results, {"a.json"}, strict=True)) == ["a.json is older than engine"]
    assert not list(published(results, {"a.json"}, strict=False))


@pytest.mark.parametrize("cell", [{"acceptance_length": 2.5}, {"acceptance_length": 2.5, "tokens_per_s": 900.0}])
def test_what_decides_when_tokens_come_ages_results_that_hold_a_time(
    cell: dict[str, float], results: Results, publish: Publish
) -> None:
    publish(cells=[cell], measured=dict.fromkeys(WHEN, "0"))
    faults = results.faults("a.json")
    assert faults == ({"stale": f"is older than {', '.join(sorted(WHEN))}"} if len(cell) > 1 else {})


def test_what_decides_which_tokens_come_ages_all(results: Results, publish: Publish) -> None:
    publish(cells=[{"acceptance_length": 2.5}], measured={"engine": "0", "scheduler": "0"})
    assert results.faults("a.json") == {"stale": "is older than engine"}


def test_an_exception_excuses_what_it_names_and_nothing_else(results: Results, publish: Publish) -> None:
    publish(dirty=True, measured=None)
    entry = {"since": "2026-11-23", "faults": ["dirty"], "why": "w", "renew": "r"}
    path = results.folder / EXCEPTIONS
    path.write_text(yaml.safe_dump({"a.json": entry}))
    (fault,) = published(results, {"a.json"}, strict=True)
    assert "cannot be checked" in fault
    path.write_text(yaml.safe_dump({"a.json": entry | {"faults": ["dirty", "unchecked"]}}))
    assert not list(published(results, {"a.json"}, strict=True))


def test_an_exception_that_nothing_needs_is_a_fault(results: Results, publish: Publish) -> None:
    publish()
    path = results.folder / EXCEPTIONS
    path.write_text(yaml.safe_dump({"a.json": {"faults": ["dirty"], "why": "w"}, "b.json": {}}))
    found = "\n".join(published(results, {"a.json"}, strict=True))
    for part in ("a.json for 'dirty'", "a.json lacks renew, since", "b.json, which no page uses"):
        assert part in found
    assert list(published(results, {"a.json"}, strict=False)) == [
        f"{EXCEPTIONS}: a.json lacks renew, since",
        f"{EXCEPTIONS}: b.json lacks faults, renew, since, why",
    ]
