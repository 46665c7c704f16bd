"""The pictures of a sweep, as PNG; each covers one workload and one kind of load."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator, ScalarFormatter, StrMethodFormatter

from aerie.bench.reports.table import Figure, Row

matplotlib.use("Agg")

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, which color-blind readers can tell apart; markers differ too."""
_MARKERS = "osD^vP"
_INK, _FAINT, _GRID = "#1f1f1f", "#666666", "#e2e2e2"
_HEADROOM = 1.08


@dataclass(frozen=True, slots=True)
class _Style:
    color: str
    marker: str


def draw_all(rows: list[Row], folder: Path, named: list[str], *, baseline: str, title: str) -> list[Path]:
    """Writes tpot.png, throughput.png, speedup.png, pareto.png and acceptance.png, as far as the rows have their
    figures.

    A target has the color of its place in `named` in all of them.
    """
    styles = {name: _Style(_COLORS[i % 6], _MARKERS[i % 6]) for i, name in enumerate(named)}
    drawing = _Drawing(rows, styles, baseline)
    pictures: list[tuple[str, str, Callable[[Axes], bool]]] = [
        ("tpot.png", "Median time per output token", lambda axes: drawing.lines(axes, "tpot_p50", "ms", scale=1e3)),
        ("throughput.png", "Output throughput", lambda axes: drawing.lines(axes, "throughput", "tokens a second")),
        ("speedup.png", f"Throughput over {baseline}", drawing.speedups),
        ("pareto.png", "Throughput against the speed of one request", drawing.pareto),
        ("acceptance.png", "Accepted drafts by position", drawing.acceptance),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, heading, draw in pictures:
        canvas = Canvas(figsize=(7.2, 4.5), dpi=160, layout="constrained")
        axes = canvas.add_subplot()
        if draw(axes):
            _dress(axes, heading, title)
            canvas.savefig(folder / name)
            written.append(folder / name)
    return written


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Each method draws on empty axes and returns whether there was anything to draw."""

    rows: list[Row]
    styles: dict[str, _Style]
    baseline: str

    def lines(self, axes: Axes, name: str, unit: str, *, scale: float = 1.0) -> bool:
        for target, style in self.styles.items():
            _line(axes, self._points(target, name), target, style, scale)
        self._loads(axes)
        axes.set_ylabel(unit)
        return bool(axes.lines)

    def speedups(self, axes: Axes) -> bool:
        for target, style in self.styles.items():
            if target != self.baseline:
                _line(axes, self._points(target, "speedup"), target, style, 1.0)
        if not axes.lines:
            return False
        axes.axhline(1, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
        self._loads(axes)
        axes.set_ylabel("times as fast")
        return True

    def pareto(self, axes: Axes) -> bool:
        """Speed of one request against throughput of the server; up and to the right is better."""
        for target, style in self.styles.items():
            own = [row for row in self.rows if row.target == target and row.figures.get("tpot_p50", Figure(0)).mean > 0]
            own.sort(key=lambda row: row.load)
            x = [1 / row.figures["tpot_p50"].mean for row in own]
            y = [row.figures["throughput"].mean for row in own]
            if own:
                _plot(axes, x, y, target, style)
            for row, across, up in zip(own, x, y, strict=True):
                offset = {"textcoords": "offset points", "xytext": (6, 4), "fontsize": 8, "color": style.color}
                axes.annotate(f"{row.load:g}", (across, up), **offset)  # type: ignore[arg-type]
        axes.set_xlabel("tokens a second of one request (1 / median time per output token)")
        axes.set_ylabel(f"tokens a second of all; labels: {self.rows[0].mode if self.rows else ''}")
        axes.set_xlim(left=0)
        return bool(axes.lines)

    def acceptance(self, axes: Axes) -> bool:
        """Acceptance at the lightest load that has it, since drafts may change with the load."""
        for target, style in self.styles.items():
            own = [row for row in self.rows if row.target == target and row.per_position]
            if own:
                shares = min(own, key=lambda row: row.load).per_position
                _plot(axes, list(range(1, len(shares) + 1)), [100 * share for share in shares], target, style)
        axes.set_xlabel("position of the drafted token")
        axes.set_ylabel("% of steps")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(0, 100)
        return bool(axes.lines)

    def _points(self, target: str, name: str) -> list[tuple[float, Figure]]:
        found = [(row.load, row.figures[name]) for row in self.rows if row.target == target and name in row.figures]
        return sorted(found, key=lambda point: point[0])

    def _loads(self, axes: Axes) -> None:
        if self.rows and self.rows[0].mode == "concurrency":
            axes.set_xscale("log", base=2)
            axes.set_xlabel("concurrent requests")
        else:
            axes.set_xlabel("requests a second")
        axes.set_xticks(sorted({row.load for row in self.rows}))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.minorticks_off()


def _line(axes: Axes, points: list[tuple[float, Figure]], target: str, style: _Style, scale: float) -> None:
    """Draws a band where repeats give an interval."""
    if not points:
        return
    x, y = [load for load, _ in points], [figure.mean * scale for _, figure in points]
    _plot(axes, x, y, target, style)
    half = [(figure.half or 0.0) * scale for _, figure in points]
    if any(half):
        low, high = ([a + sign * b for a, b in zip(y, half, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=style.color, alpha=0.18, linewidth=0)


def _plot(axes: Axes, x: list[float], y: list[float], target: str, style: _Style) -> None:
    axes.plot(x, y, label=target, linewidth=2, markersize=5.5, color=style.color, marker=style.marker)


def _dress(axes: Axes, heading: str, title: str) -> None:
    """Sets what all pictures share: heading, target names in a row below it, zero at the bottom."""
    top = max(axes.get_ylim()[1], _HEADROOM * max(float(max(line.get_ydata())) for line in axes.lines))  # type: ignore
    axes.set_ylim(0, top)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(color=_FAINT, labelcolor=_INK, length=3)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_FAINT)
    names = axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=3, columnspacing=1.4, borderaxespad=0.2)
    names.set(frame_on=False)
    rows = -(-len(names.get_texts()) // 3)
    axes.set_title(heading, loc="left", fontsize=12, fontweight="bold", color=_INK, pad=8 + 17 * rows)
    axes.set_title(title, loc="right", fontsize=8, color=_FAINT, pad=9 + 17 * rows)
