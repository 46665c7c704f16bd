"""The figures of the README and of docs/benchmarks.md are those of the committed results that they name."""

import json
import re
import statistics

import pytest

from tests.bench.test_sweep import HOME

README = (HOME / "README.md").read_text(encoding="utf-8")
BENCHMARKS = (HOME / "docs/benchmarks.md").read_text(encoding="utf-8")
RESULTS = HOME / "bench/results"
COMPARED = json.loads((RESULTS / "compare.json").read_text(encoding="utf-8"))["cells"]
EXACT = [cell for cell in COMPARED if cell["dtype"] == "float32"]
MODES = ("off", "chain", "tree")
"""Of the table's columns."""
SHAPES = {("chain", 1, "chain 6"), ("chain", 8, "chain 3"), ("tree", 1, "tree 3,4,8"), ("tree", 8, "tree 3,4,8")}


def test_the_table_is_the_comparison_s() -> None:
    overlapped = [cell for cell in EXACT if cell["overlap"]]
    cells = {(cell["temperature"], cell["concurrency"], cell["mode"]): cell for cell in overlapped}

    def figures(temperature: float, places: int) -> list[str]:
        plain, *drafted = (cells[temperature, places, mode] for mode in MODES)
        return [
            f"{plain['tokens_per_s']:.0f}",
            *(f"{one['acceptance_length']:.2f}, {one['speedup']:.2f}x" for one in drafted),
        ]

    assert {(cell["mode"], cell["concurrency"], cell["shape"]) for cell in overlapped} >= SHAPES
    for temperature in (0.0, 0.8, 1.2):
        row = [f"{temperature:g}", *figures(temperature, 1), *figures(temperature, 8)]
        assert f"| {' | '.join(row)} |" in BENCHMARKS, row


def numbers(page: str, near: str) -> set[str]:
    """The numbers in the paragraphs that contain `near`, whatever the words between them."""
    return {number for part in page.split("\n\n") if near in part for number in re.findall(r"\d+(?:\.\d+)?", part)}


def test_numbers_are_found_in_any_wording() -> None:
    assert numbers("2 of 3\n\nIn 0.5 s\nto [a](a.json): 7.", "a.json") == {"0.5", "7"}


def test_all_cells_were_compared() -> None:
    assert str(len(COMPARED)) in numbers(BENCHMARKS, "[compare.json]")
    assert {cell["dtype"] for cell in COMPARED} == {"float32", "bfloat16"}
    assert all(cell["identical"] == 1.0 for cell in COMPARED)


def test_the_large_tree_commits_what_is_said() -> None:
    tuned = json.loads((RESULTS / "tune.json").read_text(encoding="utf-8"))
    best = max(tuned["cells"], key=lambda cell: cell["acceptance_length"])
    assert {best["shape"].split(",")[-1], f"{best['acceptance_length']:.1f}"} <= numbers(BENCHMARKS, "[tune.json]")


def test_the_preset_s_table_is_the_comparison_s() -> None:
    cells = {(c["temperature"], c["concurrency"], c["mode"]): c for c in EXACT if c["overlap"]}
    for (temperature, requests, mode), preset in cells.items():
        if mode == "preset":
            plain = cells[temperature, requests, "off"]
            row = [
                f"{temperature:g}",
                str(requests),
                f"{plain['tokens_per_s']:.0f}",
                f"{preset['tokens_per_s']:.0f}",
                f"{preset['acceptance_length']:.2f}",
                f"{preset['speedup']:.2f}x",
                f"{preset['speedup_over_fastest']:.2f}x",
            ]
            assert f"| {' | '.join(row)} |" in BENCHMARKS, row


@pytest.mark.parametrize(
    ("row", "target"),
    [
        ("Aerie, shipped preset", "Aerie EAGLE-3"),
        ("Aerie, no speculation", "Aerie"),
        ("llama.cpp", "llama.cpp"),
        ("transformers", "transformers"),
        ("SGLang on a CPU", "SGLang"),
    ],
)
def test_the_readme_s_table_is_that_of_the_peers(row: str, target: str) -> None:
    """Means of the repeats, cut off rather than rounded."""
    lines = (RESULTS / "peers/cells.jsonl").read_text(encoding="utf-8").splitlines()
    cells = [cell for cell in map(json.loads, lines) if cell["target"] == target]
    reported = re.search(rf"(?m)^\| {re.escape(row)} \| (.+) \|$", README)
    assert reported is not None
    for load, figures in zip((1, 4, 16), reported[1].split(" | "), strict=True):
        found = [cell for cell in cells if cell["load"] == load]
        means = [
            statistics.mean(cell["output_tokens_per_s"] for cell in found),
            1000 * statistics.mean(cell["ttft"]["p50"] for cell in found),
            1000 * statistics.mean(cell["tpot"]["p50"] for cell in found),
        ]
        for figure, mean, places in zip(figures.split(" / "), means, (0, 0, 1), strict=True):
            assert float(figure) == pytest.approx(mean, abs=10**-places), (load, figures)


def test_the_readme_stays_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= 120
    assert not [line for line in lines if len(line) > 120 and not line.startswith(("|", "!"))]
