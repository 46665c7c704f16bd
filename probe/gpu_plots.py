"""Plots of GPU measurements: tokens per second and share of the measured roofline, by rows. Called by the command."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def draw(path: Path, cells: Sequence[dict[str, Any]]) -> None:
    """Writes a PNG with one line for each shape and simulated acceptance, of overlapped cells."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        if cell["overlap"]:
            simulated = cell.get("simulated_acceptance")
            drafted = f"{cell.get('shape')}, SIMULATED acceptance {simulated}"
            lines.setdefault("plain" if simulated is None else drafted, []).append(cell)
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for label, own in lines.items():
        batches = [cell["batch"] for cell in own]
        axes[0].plot(batches, [cell["tokens_per_s"] for cell in own], marker="o", label=label)
        axes[1].plot(batches, [cell["e_sys_measured"] for cell in own], marker="o", label=label)
    shown = sorted({cell["batch"] for cell in cells})
    for axis, title in zip(axes, ("tokens/s", "E_sys: share of the measured roofline"), strict=True):
        axis.set(xscale="log", xlabel="rows", title=title)
        axis.set_xticks(shown, labels=[str(batch) for batch in shown])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_yscale("log")
    axes[1].set_ylim(0, max(1.0, axes[1].get_ylim()[1]))
    axes[0].legend()
    first = cells[0]
    figure.suptitle(f"{first['device']}, {first['dtype']}" + (", DUMMY WEIGHTS" if first["weights"] else ""))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
