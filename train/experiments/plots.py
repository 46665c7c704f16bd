"""The plot of an experiment: acceptance length by arm or by amount of data, and speed over plain decoding by load."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_SIZE, _DPI = (7.2, 4.4), 130
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, which color-blind readers can tell apart."""

Cell = dict[str, Any]


def draw(path: Path, results: Cell, *, along: str, tasks: Sequence[str]) -> None:
    """`along` is `name` or `answers`; `tasks` are those shown. Whiskers are intervals at 95 % over prompts and seeds,
    those of speeds standard deviations over seeds.
    """
    rows = [row for row in results["means"] if row.get("task") in tasks]
    speeds = [row for row in results["means"] if row.get("depth")]  # plain decoding is the line at 1
    panels = [panel for panel in (rows, speeds) if panel]
    figure = Figure((_SIZE[0] * len(panels), _SIZE[1]), dpi=_DPI, layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        if panel is speeds:
            _speeds(axes, speeds)
        elif along == "answers":
            _growth(axes, rows)
        else:
            _bars(axes, rows)
        axes.grid(axis="y", color="#d9d9d9")
        axes.set_axisbelow(True)
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=4, frameon=False)
    figure.suptitle(results["claim"], fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})


def _bars(axes: Axes, rows: list[Cell]) -> None:
    arms, settings = _names(rows, "arm"), list(dict.fromkeys(map(_setting, rows)))
    for place, setting in enumerate(settings):
        own = {row["arm"]: row for row in rows if _setting(row) == setting}
        found = [arm for arm in arms if arm in own]
        axes.bar(
            [arms.index(arm) + place * 0.8 / len(settings) for arm in found],
            [own[arm]["acceptance_length"] for arm in found],
            width=0.8 / len(settings),
            yerr=_whiskers([own[arm] for arm in found]),
            color=_COLORS[place % len(_COLORS)],
            align="edge",
            label=setting,
        )
    axes.set_xticks([at + 0.4 for at in range(len(arms))], arms, fontsize=8)
    axes.set_ylabel("acceptance length (bonus included)")
    axes.set_ylim(bottom=1)


def _growth(axes: Axes, rows: list[Cell]) -> None:
    """Draws one line for the arms that share the first word of their names."""
    for place, kind in enumerate(dict.fromkeys(row["arm"].split()[0] for row in rows)):
        for setting, style in zip(dict.fromkeys(map(_setting, rows)), ("-", "--", ":", "-.") * 4, strict=False):
            own = [row for row in rows if row["arm"].split()[0] == kind and _setting(row) == setting]
            own.sort(key=lambda row: row["answers"])
            axes.errorbar(
                [row["answers"] for row in own],
                [row["acceptance_length"] for row in own],
                _whiskers(own),
                color=_COLORS[place % len(_COLORS)],
                linestyle=style,
                marker="o",
                label=f"{kind}, {setting}",
            )
    _doubling(axes, sorted({row["answers"] for row in rows}))
    axes.set_xlabel("answers to learn from")
    axes.set_ylabel("acceptance length (bonus included)")


def _speeds(axes: Axes, rows: list[Cell]) -> None:
    for place, (arm, depth) in enumerate(dict.fromkeys((row["arm"], row["depth"]) for row in rows)):
        own = sorted(
            (row for row in rows if (row["arm"], row["depth"]) == (arm, depth)), key=lambda row: row["concurrency"]
        )
        axes.errorbar(
            [row["concurrency"] for row in own],
            [row["over_plain"] for row in own],
            [row["over_plain_deviation"] for row in own],
            color=_COLORS[_names(rows, "arm").index(arm) % len(_COLORS)],
            linestyle=("-", "--", ":", "-.")[place % 4],
            marker="o",
            label=f"{arm}, K = {depth}",
        )
    _doubling(axes, sorted({row["concurrency"] for row in rows}))
    axes.set_xlabel("concurrent requests")
    axes.set_ylabel("tokens a second, over plain decoding")
    axes.axhline(1, color="#7f7f7f", linewidth=1)


def _whiskers(rows: list[Cell]) -> list[list[float]]:
    """How far the intervals reach below and above the lengths; a length may lie outside its interval by a rounding."""
    lower = [max(0.0, row["acceptance_length"] - row["acceptance_length_lower"]) for row in rows]
    return [lower, [max(0.0, row["acceptance_length_upper"] - row["acceptance_length"]) for row in rows]]


def _doubling(axes: Axes, values: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [str(value) for value in values])
    axes.minorticks_off()


def _names(rows: list[Cell], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in rows))


def _setting(row: Cell) -> str:
    return f"{row['task']}, {row['shape']}, T={row['temperature']:g}"
