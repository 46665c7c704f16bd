"""Plots of an evaluation: acceptance by position and acceptance length by shape. Called by `evaluate`.

Written without a date and with fixed curve names, so that equal cells give equal files.
"""

from pathlib import Path
from typing import Any

_SIZE, _DPI = (7.0, 4.0), 110


def draw_evaluation(folder: Path, cells: list[dict[str, Any]]) -> None:
    """Writes `positions.png` and `lengths.png`."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(_SIZE, dpi=_DPI)
    axes = figure.add_subplot()
    for cell in cells:
        shares = cell["acceptance_per_position"]
        axes.plot(range(1, len(shares) + 1), shares, marker="o", label=f"{cell['head']}, {_setting(cell)}")
    axes.set(xlabel="position", ylabel="share of drafts accepted", ylim=(0, 1.02), title="Acceptance by position")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _save(figure, folder / "positions.png")

    figure = Figure(_SIZE, dpi=_DPI)
    axes = figure.add_subplot()
    heads = list(dict.fromkeys(cell["head"] for cell in cells))
    settings = list(dict.fromkeys(map(_setting, cells)))
    for place, head in enumerate(heads):
        lengths = {_setting(cell): cell["acceptance_length"] for cell in cells if cell["head"] == head}
        found = [at for at, setting in enumerate(settings) if setting in lengths]
        where = [at + place * 0.8 / len(heads) for at in found]
        axes.barh(where, [lengths[settings[at]] for at in found], height=0.8 / len(heads), align="edge", label=head)
    axes.set_yticks([at + 0.4 for at in range(len(settings))], settings)
    axes.set(xlabel="acceptance length (tokens a step, bonus included)", title="Acceptance length")
    _save(figure, folder / "lengths.png")


def _setting(cell: dict[str, Any]) -> str:
    return f"{cell['task']}, {cell['shape']}, T={cell['temperature']:g}"


def _save(figure: Any, path: Path) -> None:
    figure.axes[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
