"""Plots of GPU measurements: tokens per second and share of the roofline, by rows. Called by the command."""

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
        if all(cell["e_sys"] is not None for cell in own):
            axes[1].plot(batches, [cell["e_sys"] for cell in own], marker="o", label=label)
    for axis, title in zip(axes, ("tokens/s", "share of the roofline (E_sys)"), strict=True):
        axis.set(xscale="log", xlabel="rows", title=title)
        axis.grid(alpha=0.3)
    axes[0].set_yscale("log")
    axes[0].legend()
    first = cells[0]
    figure.suptitle(f"{first['device']}, {first['dtype']}" + (", DUMMY WEIGHTS" if first["weights"] else ""))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
