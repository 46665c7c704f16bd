"""The cells of `aerie probe kernels`: what the seconds of multiplications come to, with a matrix and with a layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aerie.native.trials import FP16, PANELS
from aerie.probe.layouts import BF16, bytes_of, is_ours, product_of

Cell = dict[str, Any]
LAYER = "layer"
"""The sum of all matrices, beside their names."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Aerie's compiled kernels in a measurement, and what they found one thread to do at most."""

    name: str
    chosen: Mapping[str, str]
    """The layout that serves the model by default, by precision; none where that is not known."""
    peaks: Mapping[str, float]
    """Multiply-adds a second of Aerie's products, in registers."""
    bandwidth: float
    """Bytes a second, from memory."""

    def peak_of(self, layout: str) -> float:
        """Of torch's product in bf16, the most that any of Aerie's has; of its others, that of fp32."""
        if is_ours(layout):
            return self.peaks[product_of(layout)]
        return max(self.peaks.values()) if layout == BF16 else self.peaks[PANELS]


@dataclass(frozen=True, slots=True)
class Timed:
    """Multiplications with a matrix, or with all of a layer, at one number of tokens."""

    precision: str
    matrix: str
    shape: Sequence[int | None]
    """[out, in]"""
    weights: int
    tokens: int
    seconds: Mapping[str, float]
    """Of one multiplication, by layout."""


def cells_of(timings: Sequence[Timed], threads: int, kernels: Kernels | None) -> list[Cell]:
    """One for each layout. Shares are of `kernels`' limits; `over_torch` is over the best of torch's layouts;
    `of_best_choice`, of what serves by default, over the best that could be chosen; `over_one` is the cost over that of
    one token.
    """
    cells = [cell for timed in timings for cell in _cells(timed, threads, kernels)]
    one = {_line(cell): cell["microseconds"] for cell in cells if cell["tokens"] == 1}
    return [cell | {"over_one": cell["microseconds"] / one[_line(cell)]} for cell in cells]


def layer_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Of the sum of all matrices, from their cells in all precisions. Its limits are the highest of theirs."""
    ours = [cell for cell in cells if cell["kernel_set"]]
    peaks: dict[str, float] = {}
    for cell in ours:
        product = product_of(cell["layout"])
        peaks[product] = max(peaks.get(product, 0.0), cell["peak_gmacs"] * 1e9)
    serving: dict[str, set[str]] = {}
    for cell in cells:
        if cell["of_best_choice"] is not None:
            serving.setdefault(cell["precision"], set()).add(cell["layout"])
    kernels = None
    if ours:
        kernels = Kernels(
            ours[0]["kernel_set"],
            {precision: layouts.pop() for precision, layouts in serving.items() if len(layouts) == 1},
            peaks,
            max(cell["gigabytes_per_s"] for cell in ours) * 1e9,
        )
    return cells_of(_sums(cells), cells[0]["threads"], kernels)


def _sums(cells: Sequence[Cell]) -> list[Timed]:
    """In the order of the cells, of the layouts that every matrix has."""
    places = dict.fromkeys((cell["precision"], cell["tokens"]) for cell in cells)
    found = []
    for precision, tokens in places:
        own = [cell for cell in cells if (cell["precision"], cell["tokens"]) == (precision, tokens)]
        weights = {cell["matrix"]: cell["out"] * cell["in"] for cell in own}
        by_layout: dict[str, list[float]] = {}
        for cell in own:
            by_layout.setdefault(cell["layout"], []).append(cell["microseconds"] / 1e6)
        seconds = {layout: sum(taken) for layout, taken in by_layout.items() if len(taken) == len(weights)}
        found.append(Timed(precision, LAYER, (None, None), sum(weights.values()), tokens, seconds))
    return found


def _line(cell: Cell) -> tuple[str, str, str]:
    return cell["precision"], cell["matrix"], cell["layout"]


def _cells(timed: Timed, threads: int, kernels: Kernels | None) -> list[Cell]:
    theirs = min(taken for layout, taken in timed.seconds.items() if not is_ours(layout))
    choices = [taken for layout, taken in timed.seconds.items() if layout == FP16 or is_ours(layout)]
    multiply_adds = timed.weights * timed.tokens
    return [
        {
            "precision": timed.precision,
            "matrix": timed.matrix,
            "out": timed.shape[0],
            "in": timed.shape[1],
            "tokens": timed.tokens,
            "threads": threads,
            "layout": layout,
            "microseconds": taken * 1e6,
            "gmacs": multiply_adds / taken / 1e9,
            "of_peak": multiply_adds / taken / kernels.peak_of(layout) if kernels else None,
            "of_bandwidth": _bytes(timed, layout) / taken / kernels.bandwidth if kernels else None,
            "over_columns": timed.seconds["columns"] / taken,
            "over_torch": theirs / taken,
            "of_best_choice": min(choices) / taken
            if kernels and kernels.chosen.get(timed.precision) == layout
            else None,
            "kernel_set": kernels.name if kernels and is_ours(layout) else None,
            "peak_gmacs": kernels.peak_of(layout) / 1e9 if kernels else None,
            "gigabytes_per_s": kernels.bandwidth / 1e9 if kernels else None,
        }
        for layout, taken in timed.seconds.items()
    ]


def _bytes(timed: Timed, layout: str) -> int:
    return bytes_of(layout, timed.precision) * timed.weights
