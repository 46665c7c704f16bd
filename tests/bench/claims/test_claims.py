"""The command: README and docs of this checkout hold to their results, and planted faults are found."""

from pathlib import Path

from aerie.bench.claims.__main__ import faults, write
from aerie.bench.claims.results import Results
from tests.bench.claims.conftest import Publish
from tests.house import HOME

PAGE = """Now [1][it] and 2 ms.

<!-- table a.json
mode = {mode}
-->
<!-- end -->

[it]: ../bench/results/a.json "mode=off rows=1: speed"
"""


def test_the_pages_hold_to_their_results() -> None:
    """`make claims` also asks whether a result is older than its code, which every change of the code would fail."""
    assert not list(faults(HOME, Results(HOME / "bench/results"), strict=False)), "make docs, or cite a result"


def test_planted_faults_of_a_page(home: Path, results: Results, publish: Publish) -> None:
    publish()
    page = home / "docs/a.md"
    page.write_text(PAGE)
    assert list(faults(home, results, strict=True)) == [
        "docs/a.md:1: 2 has no source: cite its result, or quote it as code if it is set",
        "docs/a.md differs from the results: make docs",
    ]
    page.write_text(PAGE.replace(" and 2 ms", ""))
    write(home, results)
    assert not list(faults(home, results, strict=True))
    page.write_text(page.read_text().replace("[100]", "[101]"))
    assert list(faults(home, results, strict=True)) == ["docs/a.md differs from the results: make docs"]
    page.write_text(PAGE.replace("mode=off", "mode=none"))
    assert any("selects nothing" in fault for fault in faults(home, results, strict=True))


def test_a_result_with_a_fault_carries_no_claim(home: Path, results: Results, publish: Publish) -> None:
    publish(dirty=True)
    (home / "docs/a.md").write_text(PAGE.replace(" and 2 ms", ""))
    write(home, results)
    assert list(faults(home, results, strict=True)) == ["a.json was made from a changed tree"]
    (home / "bench/results/a.json").unlink()
    assert any("the result a.json is missing" in fault for fault in faults(home, Results(results.folder), strict=True))
