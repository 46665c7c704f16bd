"""The picture of `aerie probe planner`: speed over no speculation by rows, one line for each mode.

A row of panels for each kind of requests, a column for each temperature.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

_PLANNER, _OFF = "planner", "off"


def draw(path: Path, cells: Sequence[dict[str, Any]], *, by: str) -> None:
    """Writes a PNG of all cells; `by` is `over_off` or `cpu_over_off`."""
    loads, temperatures = (list(dict.fromkeys(cell[name] for cell in cells)) for name in ("load", "temperature"))
    modes = [mode for mode in dict.fromkeys(cell["mode"] for cell in cells) if mode != _OFF]
    figure, panels = plt.subplots(
        len(loads),
        len(temperatures),
        figsize=(4 * len(temperatures), 0.8 + 2.8 * len(loads)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for load, line in zip(loads, panels, strict=True):
        for temperature, panel in zip(temperatures, line, strict=True):
            own = [cell for cell in cells if (cell["load"], cell["temperature"]) == (load, temperature)]
            _panel(panel, own, modes, by)
            panel.set_title(f"{load}, T = {temperature}", fontsize=10)
        line[0].set_ylabel("over no speculation")
    for panel in panels[-1]:
        panel.set_xlabel("rows")
    lines, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=len(modes))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(panel: Any, cells: Sequence[dict[str, Any]], modes: Sequence[str], by: str) -> None:
    """Each mode has one colour in all panels, also where a panel lacks some."""
    for number, mode in enumerate(modes):
        own = sorted((cell for cell in cells if cell["mode"] == mode), key=lambda one: one["rows"])
        _line(panel, mode, own, by, f"C{number}")
    panel.axhline(1.0, color="black", linewidth=0.8)
    panel.set_xscale("log")
    rows = sorted({cell["rows"] for cell in cells})
    panel.set_xticks(rows, [str(row) for row in rows])
    panel.minorticks_off()
    panel.grid(alpha=0.3)


def _line(panel: Any, mode: str, cells: Sequence[dict[str, Any]], by: str, color: str) -> None:
    interval = "interval" if by == "over_off" else "cpu_interval"
    rows, values = [cell["rows"] for cell in cells], [cell[by] for cell in cells]
    strong = mode == _PLANNER
    width, order = (2.5, 3) if strong else (1, 2)
    panel.plot(rows, values, marker="o", markersize=4, label=mode, linewidth=width, zorder=order, color=color)
    lower, upper = [cell[interval][0] for cell in cells], [cell[interval][1] for cell in cells]
    panel.fill_between(rows, lower, upper, alpha=0.2 if strong else 0.07, color=color)
