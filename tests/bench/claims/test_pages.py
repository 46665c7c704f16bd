"""Pages: figures and tables as their results have them, and measured quantities without a source."""

from pathlib import Path

import pytest

from aerie.bench.claims.pages import renewed, root_of, sources
from aerie.bench.claims.quantities import unsourced
from aerie.bench.claims.results import ClaimError, Results
from tests.bench.claims.conftest import Publish

FOOT = '\n\n[it]: ../bench/results/a.json "{}"\n'


@pytest.fixture(autouse=True)
def _published(publish: Publish) -> None:
    publish()


@pytest.mark.parametrize(
    ("figure", "question", "made"),
    [
        ("1.23", "mode=chain rows=1: speed", "150.00"),
        ("1,000", "mode=off rows=8: speed", "1,250"),
        ("9", "mode=off rows=1: share %", "3"),
        ("9.9", "mode=off rows=1: share ms", "31.0"),
        ("0", "mode=off: least speed", "100"),
        ("0", "mode=off: most speed", "1250"),
        ("0.0", "rows=1: mean speed", "125.0"),
        ("0", "count share", "3"),
        ("0", "#means mode=off: speed", "100"),
    ],
)
def test_a_figure_is_its_result_s(figure: str, question: str, made: str, results: Results) -> None:
    foot = FOOT.format(question if ":" in question else f": {question}")
    page = renewed(f"It is [{figure}][it].{foot}", results, "../")
    assert page == f"It is [{made}][it].{foot}"
    assert renewed(page, results, "../") == page


@pytest.mark.parametrize(
    "text",
    [
        "[1][it]",
        "[1][it]" + FOOT.format("mode=tree: speed"),
        "[1][it]" + FOOT.format("mode=off: speed"),
        "[1][it]" + FOOT.format("mode=off rows=1: nothing"),
        "[1][it]" + FOOT.format("mode=off rows=1: speed").replace("a.json", "b.json"),
        "it" + FOOT.format("mode=off rows=1: speed"),
    ],
)
def test_a_figure_that_no_result_has(text: str, results: Results) -> None:
    with pytest.raises(ClaimError):
        renewed(text, results, "../")


def test_a_definition_may_take_two_lines(results: Results) -> None:
    foot = FOOT.format("mode=off rows=1: speed").replace(' "', '\n  "')
    assert "[100][it]" in renewed(f"[1][it]{foot}", results, "../")
    assert sources(foot) == {"a.json"} and not list(unsourced(f"[1.5][it]{foot}"))


def test_a_result_that_a_sentence_links_to_is_used_too() -> None:
    text = "All ([a](../bench/results/a.json), [b.jsonl](bench/results/gpu/b.jsonl)), as [drawn](bench/results/c.png)."
    assert sources(text) == {"a.json", "gpu/b.jsonl"}


@pytest.mark.parametrize(("file", "question"), [("b.json#totals", ""), ("b.json", "#totals ")])
def test_figures_and_tables_take_the_totals_of_laps(
    results: Results, publish: Publish, file: str, question: str
) -> None:
    """As `probe drift` and `probe planner` write them: a list beside the cells."""
    publish("b.json", totals=[{"mode": "planner", "speed": 7.0}, {"mode": "off", "speed": 5.0}])
    foot = FOOT.format(f"{question}mode=planner: speed").replace("a.json", file)
    page = f"[1][it]\n\n<!-- table b.json#totals mode=off\nspeed = {{speed .1f}}\n-->\n<!-- end -->{foot}"
    made = renewed(page, results, "../")
    assert "[7][it]" in made and "| 5.0 |" in made and sources(made) == {"b.json"}
    with pytest.raises(ClaimError, match="no list 'total'"):
        renewed(made.replace("#totals", "#total"), results, "../")


def test_a_table_is_made_of_cells(results: Results) -> None:
    comment = "<!-- table a.json mode=off\nrows = {rows} | speed = {speed .0f} | idle, % = {share %.1f}\n-->\n"
    page = renewed(f"{comment}<!-- end -->", results, "../")
    assert "| rows | speed | idle, % |\n| --- | --- | --- |\n| 1 | 100 | 3.1 |\n| 8 | 1250 | 50.0 |\n" in page
    assert "[a.json](../bench/results/a.json): `aerie probe a`, 2026-11-23, commit 0123456, 1 core, load 0.5." in page
    assert renewed(page, results, "../") == page and sources(page) == {"a.json"} and not list(unsourced(page))


def test_a_table_has_a_column_for_each_value(results: Results) -> None:
    page = renewed("<!-- table a.json\nmode = {mode} | by rows = {speed .0f}\n-->\n<!-- end -->", results, "")
    assert "| mode | 1 | 8 |\n| --- | --- | --- |\n| off | 100 | 1250 |\n| chain | 150 | 1000 |\n" in page


def test_cells_that_agree_are_averaged_and_missing_ones_are_not(results: Results) -> None:
    page = renewed(
        "<!-- table a.json\nmode = {mode} | mean = {speed .0f} | s = {share .3f}\n-->\n<!-- end -->", results, ""
    )
    assert "| off | 675 | 0.266 |\n| chain | 575 | 0.052 |\n" in page


def test_a_ratio_is_of_cells_that_differ_in_one_thing(results: Results, publish: Publish) -> None:
    cells = [
        {"seed": s, "depth": d, "speed": v} for s, d, v in ((0, 0, 10.0), (0, 3, 20.0), (1, 0, 100.0), (1, 3, 100.0))
    ]
    publish("b.json", cells)
    table = "<!-- table b.json depth=3\ndepth = {depth} | over = {speed / depth=0 .2f}\n-->\n<!-- end -->"
    assert "| 3 | 1.50 |\n" in renewed(table, results, ""), "the mean of 2 and 1, not 120 over 110"
    with pytest.raises(ClaimError, match="0 cells"):
        renewed(table.replace("depth=0", "depth=7"), results, "")


def test_a_caption_says_what_is_wrong(results: Results, publish: Publish) -> None:
    publish(dirty=True)
    page = renewed("<!-- table a.json\nmode = {mode}\n-->\n<!-- end -->", results, "")
    assert "It was made from a changed tree." in page.replace("\n", " ")


def test_the_way_to_the_checkout() -> None:
    home = Path("/a")
    assert [root_of(home / name, home) for name in ("README.md", "docs/x.md", "docs/d/x.md")] == ["", "../", "../../"]
