"""The pictures of a sweep, as PNG: one workload and one kind of load each."""

from collections.abc import Callable
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from bench.table import Figure, Row

matplotlib.use("Agg")

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, which color-blind readers can tell apart; markers differ too."""
_MARKERS = "osD^vP"
_INK, _FAINT = "#222222", "#d9d9d9"


def draw_all(rows: list[Row], folder: Path, *, baseline: str) -> list[Path]:
    """tpot.png, throughput.png, speedup.png, pareto.png and acceptance.png, as far as the rows have their figures."""
    pictures: list[tuple[str, Callable[[Axes], bool]]] = [
        ("tpot.png", lambda axes: _lines(axes, rows, "tpot_p50", "time per output token, median (ms)", scale=1e3)),
        ("throughput.png", lambda axes: _lines(axes, rows, "throughput", "output tokens a second")),
        ("speedup.png", lambda axes: _speedups(axes, rows, baseline)),
        ("pareto.png", lambda axes: _pareto(axes, rows)),
        ("acceptance.png", lambda axes: _acceptance(axes, rows)),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in pictures:
        canvas = Canvas(figsize=(7.2, 4.4), dpi=150, layout="constrained")
        if draw(canvas.add_subplot()):
            canvas.savefig(folder / name)
            written.append(folder / name)
    return written


def _styles(rows: list[Row]) -> dict[str, dict[str, str]]:
    names = list(dict.fromkeys(row.target for row in sorted(rows, key=lambda row: row.target)))
    return {name: {"color": _COLORS[i % 6], "marker": _MARKERS[i % 6]} for i, name in enumerate(names)}


def _lines(axes: Axes, rows: list[Row], name: str, label: str, *, scale: float = 1.0) -> bool:
    for target, style in _styles(rows).items():
        points = [(row.load, row.figures[name]) for row in rows if row.target == target and name in row.figures]
        _line(axes, points, target, style, scale)
    _frame(axes, rows, label)
    axes.set_ylim(bottom=0)
    return bool(axes.lines)


def _speedups(axes: Axes, rows: list[Row], baseline: str) -> bool:
    for target, style in _styles(rows).items():
        if target != baseline:
            points = [(r.load, r.figures["speedup"]) for r in rows if r.target == target and "speedup" in r.figures]
            _line(axes, points, target, style, 1.0)
    if not axes.lines:
        return False
    axes.axhline(1, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate(baseline, (0.995, 1), xycoords=("axes fraction", "data"), ha="right", va="bottom", color=_INK)
    _frame(axes, rows, f"output tokens a second, over {baseline}")
    axes.set_ylim(bottom=0)
    return True


def _pareto(axes: Axes, rows: list[Row]) -> bool:
    """Up and to the right is better: what one request gets against what the server gives."""
    for target, style in _styles(rows).items():
        own = [r for r in rows if r.target == target and {"throughput", "tpot_p50"} <= r.figures.keys()]
        if own:
            own.sort(key=lambda row: row.load)
            x = [1 / row.figures["tpot_p50"].mean for row in own if row.figures["tpot_p50"].mean > 0]
            y = [row.figures["throughput"].mean for row in own if row.figures["tpot_p50"].mean > 0]
            axes.plot(x, y, label=target, linewidth=1.8, markersize=5, **style)  # type: ignore[arg-type]
            for row, across, up in zip(own, x, y, strict=False):
                axes.annotate(f"{row.load:g}", (across, up), textcoords="offset points", xytext=(5, 4), fontsize=8)
    axes.set_xlabel("tokens a second of one request (1 / median time per output token)")
    _dress(axes, f"output tokens a second; labels: {rows[0].mode if rows else ''}")
    return bool(axes.lines)


def _acceptance(axes: Axes, rows: list[Row]) -> bool:
    for target, style in _styles(rows).items():
        own = [row.per_position for row in rows if row.target == target and row.per_position]
        if own:
            shares = max(own, key=len)
            places = range(1, len(shares) + 1)
            axes.plot(places, [100 * share for share in shares], label=target, linewidth=1.8, **style)  # type: ignore
    axes.set_xlabel("position of the drafted token")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 100)
    _dress(axes, "accepted (% of steps)")
    return bool(axes.lines)


def _line(axes: Axes, points: list[tuple[float, Figure]], target: str, style: dict[str, str], scale: float) -> None:
    if not points:
        return
    points.sort(key=lambda point: point[0])
    x, y = [load for load, _ in points], [figure.mean * scale for _, figure in points]
    axes.plot(x, y, label=target, linewidth=1.8, markersize=5, **style)  # type: ignore[arg-type]
    half = [(figure.half or 0.0) * scale for _, figure in points]
    if any(half):
        low, high = ([a + sign * b for a, b in zip(y, half, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0)


def _frame(axes: Axes, rows: list[Row], label: str) -> None:
    loads = sorted({row.load for row in rows})
    if rows and rows[0].mode == "concurrency":
        axes.set_xscale("log", base=2)
        axes.set_xlabel("concurrent requests")
    else:
        axes.set_xlabel("requests a second")
    axes.set_xticks(loads)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.minorticks_off()
    _dress(axes, label)


def _dress(axes: Axes, label: str) -> None:
    axes.set_ylabel(label)
    axes.grid(color=_FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if axes.lines:
        axes.legend(frameon=False)
