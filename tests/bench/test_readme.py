"""The figures of the README are those of the committed results that it names."""

import json
import re

import pytest

from tests.bench.test_sweep import HOME

README = (HOME / "README.md").read_text(encoding="utf-8")
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
        assert f"| {' | '.join(row)} |" in README, row


def test_what_is_said_of_all_cells_is_so() -> None:
    count = re.search(r"All answers of all (\d+) cells, in fp32 and in bf16, are the same", README)
    assert count is not None and int(count[1]) == len(COMPARED)
    assert {cell["dtype"] for cell in COMPARED} == {"float32", "bfloat16"}
    assert all(cell["identical"] == 1.0 for cell in COMPARED)


def test_the_large_tree_commits_what_is_said() -> None:
    told = re.search(r"Trees of (\d+) nodes commit (\d\.\d)\s+tokens a step \(\[tune\.json\]", README)
    assert told is not None
    tuned = json.loads((RESULTS / "tune.json").read_text(encoding="utf-8"))
    lengths = [cell["acceptance_length"] for cell in tuned["cells"] if cell["shape"].endswith(f",{told[1]}")]
    assert max(lengths) == pytest.approx(float(told[2]), abs=0.05)
