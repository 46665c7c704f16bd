"""`aerie probe kernels`: each matrix in bf16 and in 8 bits, in every layout, one after the other."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.engine.model.config import read_model_config
from aerie.engine.model.matrix import Matrix, rounded
from aerie.native.march import LEVELS, runnable
from aerie.native.trials import PanelTrial, shapes_of
from aerie.probe import kernels
from aerie.probe.kernel_cells import Kernels, Timed, cells_of, layer_cells
from aerie.probe.kernels import measure_marches
from aerie.probe.layouts import input_dtype, is_ours, torch_products
from aerie.probe.multiplications import Measure, measure_matrix
from tests.native.cpp_here import needs_amx, needs_cpp, needs_dots
from tests.spec import models

MARCH = runnable()[0].name


def quiet(text: str) -> None: ...


def measure_of(folder: Path) -> Measure:
    model = read_model_config(models.write_target(folder / "target"))
    return Measure(shapes_of(model), model.layers, tokens=(1, 3), seconds=0.0)


def test_a_matrix_is_measured_in_both_precisions_and_every_layout(tmp_path: Path) -> None:
    cells = measure_matrix(measure_of(tmp_path), "qkv")
    for precision, theirs in (("bf16", {"rows", "columns", "bf16"}), ("int8", {"rows", "columns", "bf16", "int8"})):
        own = [cell for cell in cells if cell["precision"] == precision]
        layouts = {cell["layout"] for cell in own}
        assert layouts >= theirs and len(own) == len(layouts) * 2
        assert ("int8" in layouts) == (precision == "int8")
    for cell in cells:
        assert cell["matrix"] == "qkv" and cell["microseconds"] > 0 and cell["gmacs"] > 0
        assert cell["layout"] != "columns" or cell["over_columns"] == 1
        assert is_ours(cell["layout"]) or cell["over_torch"] <= 1
        assert cell["over_one"] > 0 and (cell["tokens"] > 1 or cell["over_one"] == 1)


@needs_cpp
def test_our_own_products_are_measured_on_what_was_asked_for(tmp_path: Path) -> None:
    measure = measure_of(tmp_path)
    only = replace(measure, shapes={"output": measure.shapes["output"]})
    foreign = next(level.name for level in LEVELS.values() if level.foreign)
    said: list[str] = []
    (cells,) = measure_marches(only, [MARCH, foreign], say=said.append)
    assert {cell["march"] for cell in cells} == {MARCH}, "and never on what this machine lacks"
    assert said[0] == f"{MARCH}: output" and said[1].startswith(foreign)
    for precision in ("bf16", "int8"):
        own = [cell for cell in cells if cell["precision"] == precision]
        ours = [cell for cell in own if cell["layout"].startswith("panels")]
        assert len(ours) == 2 * 2 * 2, "near and far ahead, two numbers of tokens, the matrix and the layer"
        assert len([cell for cell in own if (cell["of_best_choice"] or 0) > 0]) == 2 * 2, "one layout serves"
        for cell in ours:
            assert cell["kernel_set"].startswith(MARCH) and cell["over_torch"] > 0
            assert cell["of_peak"] == pytest.approx(cell["gmacs"] / cell["peak_gmacs"])
            weights = measure.shapes["output"][0] * measure.shapes["output"][1]
            moved = weights * (1 if precision == "int8" else 2) / cell["microseconds"] / 1e3
            assert cell["of_bandwidth"] == pytest.approx(moved / cell["gigabytes_per_s"])


@needs_dots
def test_dot_products_are_measured_where_they_may_serve(tmp_path: Path) -> None:
    """Their share is of the multiply-adds that they can do, and so is that of torch's products of bf16. On some CPUs
    these are fewer than those of fp32.
    """
    measure = replace(measure_of(tmp_path), rounds=True)
    cells: dict[str, list[dict[str, Any]]] = {"bf16": [], "int8": []}
    for cell in measure_matrix(measure, "qkv"):
        cells[cell["precision"]].append(cell)
    by_precision = [[cell for cell in own if cell["layout"].startswith("dots")] for own in cells.values()]
    assert [len(own) for own in by_precision] == [2 * 2, 2 * 2], "near and far ahead, two numbers of tokens"
    dots = [cell for own in by_precision for cell in own]
    peaks = {cell["layout"]: cell["peak_gmacs"] for cell in cells["bf16"]}
    fp32 = peaks["columns"]
    assert dots[0]["peak_gmacs"] != fp32 == peaks["panels"] == peaks["panels far ahead"]
    assert peaks["bf16"] == max(peaks.values())
    assert all(cell["over_torch"] > 0 and cell["kernel_set"] for cell in dots)


@needs_amx
@pytest.mark.parametrize("rounds", [True, False])
def test_amx_is_measured_where_it_may_serve(tmp_path: Path, rounds: bool) -> None:
    """An activation of fp32 is three of bf16 to it."""
    cells = measure_matrix(replace(measure_of(tmp_path), rounds=rounds), "qkv")
    ours = [cell for cell in cells if cell["layout"] == "amx"]
    assert [(cell["precision"], cell["tokens"]) for cell in ours] == [
        (precision, tokens) for precision in ("bf16", "int8") for tokens in (1, 3)
    ]
    fp32 = next(cell["peak_gmacs"] for cell in cells if cell["layout"] == "columns")
    assert all(cell["kernel_set"] and cell["peak_gmacs"] > (6 if rounds else 2) * fp32 for cell in ours)


def test_a_layer_of_other_products_keeps_their_peaks() -> None:
    chosen = {"bf16": "dots far ahead", "int8": "panels"}
    limits = Kernels("set", chosen, {"panels": 2.0, "dots": 4.0, "amx": 16.0}, 8.0)
    seconds = {"columns": 4.0, "panels": 2.0, "dots far ahead": 1.0, "amx": 1.5, "bf16": 8.0}
    parts = [Timed("bf16", name, (2, 1), 2, 1, seconds) for name in ("a", "b")]
    eight = [timed(name, 2, 1, **{"panels": 2.0}) for name in ("a", "b")]
    whole = layer_cells(cells_of([*parts, *eight], 1, limits))
    shares = {cell["layout"]: cell["of_peak"] for cell in whole if cell["precision"] == "bf16"}
    peaks = dict(zip(seconds, (2, 2, 4, 16, 16), strict=True))
    assert shares == {name: 4 / (2 * taken) / peaks[name] for name, taken in seconds.items()}
    serving = [(cell["precision"], cell["layout"]) for cell in whole if cell["of_best_choice"] is not None]
    assert serving == [("bf16", "dots far ahead"), ("int8", "panels")]


@pytest.mark.parametrize("integers", [False, True])
def test_every_product_of_torch_is_that_of_the_weights(integers: bool) -> None:
    numbers = torch.randn(48, 64).bfloat16().float()
    weight: Matrix = rounded(numbers) if integers else numbers
    wide = numbers if isinstance(weight, Tensor) else weight.weight
    x = torch.randn(5, 64)
    for name, product in torch_products(weight, fp16=True).items():
        found, near = product(x.to(input_dtype(name))).float(), 0.02 if input_dtype(name) == torch.bfloat16 else 1e-5
        assert (found - x @ wide.t()).abs().max() < near * (x @ wide.t()).abs().max(), name


@needs_cpp
def test_a_trial_of_rounded_weights_multiplies_by_the_integers() -> None:
    weight = rounded(torch.randn(40, 24))
    (panels,) = PanelTrial([weight])._panels
    assert torch.equal(panels.weight, weight.weight) and panels.bytes < 2 * 40 * 24


def timed(matrix: str, weights: int, tokens: int, **seconds: float) -> Timed:
    return Timed("int8", matrix, (weights, 1), weights, tokens, {"columns": 4.0, **seconds})


def test_a_layer_is_the_sum_of_its_matrices() -> None:
    narrow = cells_of(
        [timed("a", 2, 1, panels=1.0, mkl=9.0)], 1, Kernels("set", {"int8": "panels"}, {"panels": 1.0}, 8.0)
    )
    wide = cells_of([timed("b", 6, 1, panels=3.0)], 1, Kernels("set", {"int8": "panels"}, {"panels": 2.0}, 4.0))
    columns, panels = layer_cells(narrow + wide)
    assert panels["layout"] == "panels" and panels["microseconds"] == 4e6 and panels["over_torch"] == 2
    assert panels["of_peak"] == pytest.approx(8 / 4 / 2) and panels["of_bandwidth"] == pytest.approx(8 / 4 / 8)
    assert columns["layout"] == "columns", "a layout that one matrix lacks has no sum"
    assert panels["of_best_choice"] == 1 and columns["of_best_choice"] is None
    torn = cells_of([timed("b", 6, 1, panels=3.0)], 1, Kernels("set", {"int8": "columns"}, {"panels": 2.0}, 4.0))
    assert all(cell["of_best_choice"] is None for cell in layer_cells(narrow + torn)), "no one layout serves"
    alone = cells_of([timed("b", 6, 1, panels=3.0)], 1, None)
    assert all(cell["of_peak"] is None for cell in layer_cells(alone)), "limits are known from kernels alone"


class Stub:
    """Measures nothing, and says what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, str]] = []
        monkeypatch.setattr(kernels, "_measured", self)

    def __call__(self, measure: Measure, name: str, march: str) -> list[dict[str, Any]]:
        self.asked.append((march, name))
        return cells_of([timed(name, 2, count, panels=1.0) for count in measure.tokens], measure.threads, None)


MEASURE = Measure({"a": (2, 1), "b": (2, 1)}, 1, tokens=(1, 3))


def matrices(pieces: Sequence[list[dict[str, Any]]]) -> list[list[str]]:
    return [list(dict.fromkeys(cell["matrix"] for cell in piece)) for piece in pieces]


def test_known_matrices_are_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub(monkeypatch)
    first, second = measure_marches(MEASURE, [MARCH], say=quiet)
    assert matrices([first, second]) == [["a"], ["b", "layer"]]
    layer = [cell for cell in second if cell["matrix"] == "layer"]
    assert list(measure_marches(MEASURE, [MARCH], known=first + second, say=quiet)) == []
    (again,) = measure_marches(MEASURE, [MARCH], known=first, say=quiet)
    assert [cell for cell in again if cell["matrix"] == "layer"] == layer, "of the known and the new"
    (other,) = measure_marches(MEASURE, [MARCH], known=[cell | {"march": "x"} for cell in second] + second, say=quiet)
    assert matrices([other]) == [["a", "layer"]]
    assert stub.asked == [(MARCH, "a"), (MARCH, "b"), (MARCH, "b"), (MARCH, "a")]


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, []), (1.0, ["a"]), (2.0, ["a", "b"])])
def test_no_matrix_begins_after_its_time(seconds: float, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub(monkeypatch)
    pieces = measure_marches(MEASURE, [MARCH], seconds=seconds, say=quiet, clock=lambda: float(len(stub.asked)))
    assert [name for piece in matrices(list(pieces)) for name in piece if name != "layer"] == expected


@pytest.mark.parametrize("asked", [replace(MEASURE, tokens=(1,)), replace(MEASURE, threads=2)])
def test_a_file_of_other_tokens_or_threads_is_not_continued(asked: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub(monkeypatch)
    known = next(measure_marches(MEASURE, [MARCH], say=quiet))
    stub.asked.clear()
    with pytest.raises(ConfigError, match="another file"):
        list(measure_marches(asked, [MARCH], known=known, say=quiet))
    assert stub.asked == []
