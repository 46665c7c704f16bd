"""The picture of `aerie probe planner`: speed over no speculation, by rows and temperature, one line for each mode."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

_PLANNER, _OFF = "planner", "off"


def draw(path: Path, cells: Sequence[dict[str, Any]], *, by: str) -> None:
    """Writes a PNG with a panel for each temperature; `by` is `over_off` or `cpu_over_off`."""
    temperatures = list(dict.fromkeys(cell["temperature"] for cell in cells))
    figure, panels = plt.subplots(
        1, len(temperatures), figsize=(4 * len(temperatures), 3.6), sharey=True, squeeze=False, layout="constrained"
    )
    for panel, temperature in zip(panels[0], temperatures, strict=True):
        own = [cell for cell in cells if cell["temperature"] == temperature and cell["mode"] != _OFF]
        for mode in dict.fromkeys(cell["mode"] for cell in own):
            _line(panel, mode, sorted((cell for cell in own if cell["mode"] == mode), key=lambda one: one["rows"]), by)
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set(xscale="log", xlabel="rows", title=f"T = {temperature}")
        rows = sorted({cell["rows"] for cell in own})
        panel.set_xticks(rows, [str(row) for row in rows])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("tokens a second over no speculation")
    panels[0][-1].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _line(panel: Any, mode: str, cells: Sequence[dict[str, Any]], by: str) -> None:
    interval = "interval" if by == "over_off" else "cpu_interval"
    rows, values = [cell["rows"] for cell in cells], [cell[by] for cell in cells]
    strong = mode == _PLANNER
    [line] = panel.plot(rows, values, marker="o", label=mode, linewidth=2.5 if strong else 1, zorder=3 if strong else 2)
    lower, upper = zip(*(cell[interval] for cell in cells), strict=True)
    panel.fill_between(rows, lower, upper, alpha=0.2 if strong else 0.07, color=line.get_color())
