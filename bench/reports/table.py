"""Cells averaged over their repeats: one row for each target, workload and load, with the noise between repeats."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from aerie.bench.measured import interval

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over repeats and half of its 95 % interval; None for one repeat."""

    mean: float
    half: float | None = None

    def written(self, scale: float = 1.0, form: str = ".1f") -> str:
        text = format(self.mean * scale, form)
        return text if self.half is None else f"{text} ± {format(self.half * scale, form)}"


@dataclass(frozen=True, slots=True)
class Row:
    """`figures` are means over the repeats that succeeded; `failed` counts the others."""

    target: str
    workload: str
    mode: str
    load: float
    figures: dict[str, Figure]
    per_position: list[float]
    lines: list[Line] = field(repr=False)
    failed: int = 0


_PATHS = {
    "tpot_p50": ("tpot", "p50"),
    "tpot_p99": ("tpot", "p99"),
    "ttft_p50": ("ttft", "p50"),
    "ttft_p99": ("ttft", "p99"),
    "e2e_p50": ("e2e", "p50"),
    "itl_p99": ("itl", "p99"),
    "throughput": ("output_tokens_per_s",),
    "throughput_with_drain": ("output_tokens_per_s_with_drain",),
    "requests_per_s": ("requests_per_s",),
    "goodput": ("goodput_per_s",),
    "acceptance_length": ("acceptance_length",),
    "joules_per_token": ("joules_per_token",),
    "cost": ("cost_per_million_tokens",),
}
"""Names of figures, and where a cell's line has them. Times are seconds."""


def rows(lines: list[Line], baseline: str) -> list[Row]:
    """Rows by workload, mode, load and target.

    `speedup` is of throughput, `tpot_speedup` of TPOT, each relative to the same repeat of the baseline.
    """
    groups: dict[tuple[str, str, float, str], list[Line]] = defaultdict(list)
    for line in lines:
        groups[line["workload"], line["mode"], line["load"], line["target"]].append(line)
    return [_row(key, groups, baseline) for key in sorted(groups)]


def _row(key: tuple[str, str, float, str], groups: dict[tuple[str, str, float, str], list[Line]], baseline: str) -> Row:
    workload, mode, load, target = key
    good = [line for line in groups[key] if line["status"] == "ok"]
    figures = {name: figure for name, path in _PATHS.items() if (figure := _figure([_at(line, path) for line in good]))}
    plain = {line["repeat"]: line for line in groups.get((*key[:3], baseline), []) if line["status"] == "ok"}
    pairs = [(line, plain[line["repeat"]]) for line in good if line["repeat"] in plain]
    faster = {
        "speedup": _figure(
            [_ratio(_at(a, ("output_tokens_per_s",)), _at(b, ("output_tokens_per_s",))) for a, b in pairs]
        ),
        "tpot_speedup": _figure([_ratio(_at(b, ("tpot", "p50")), _at(a, ("tpot", "p50"))) for a, b in pairs]),
        "energy_saved": _figure([_saved(a, b) for a, b in pairs if target != baseline]),
        "time_saved": _figure([_saved_time(a, b) for a, b in pairs if target != baseline]),
    }
    figures |= {name: figure for name, figure in faster.items() if figure}
    return Row(
        target=target,
        workload=workload,
        mode=mode,
        load=load,
        figures=figures,
        per_position=_mean_by_place([line["acceptance_per_position"] or [] for line in good]),
        lines=groups[key],
        failed=len(groups[key]) - len(good),
    )


def _at(line: Line, path: tuple[str, ...]) -> float | None:
    value: Any = line
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _figure(values: list[float | None]) -> Figure | None:
    known = [value for value in values if value is not None]
    return Figure(*interval(known)) if known else None


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _saved(line: Line, plain: Line) -> float | None:
    """Share of the baseline's energy per token that this target saves."""
    ratio = _ratio(_at(line, ("joules_per_token",)), _at(plain, ("joules_per_token",)))
    return None if ratio is None else 1 - ratio


def _saved_time(line: Line, plain: Line) -> float | None:
    """Share of the baseline's machine time per token that this target saves; also the saved share of an hourly bill."""
    ratio = _ratio(_at(plain, ("output_tokens_per_s",)), _at(line, ("output_tokens_per_s",)))
    return None if ratio is None else 1 - ratio


def over_each_other(own: list[Row], named: list[str]) -> list[list[str]]:
    """For each load and target, its throughput divided by every target's, as text; `own` has one workload and mode."""
    lines = []
    for load in sorted({row.load for row in own}):
        rates = {row.target: row.figures["throughput"].mean for row in own if row.load == load and row.figures}
        for name in named:
            if name in rates:
                ratios = [_ratio(rates[name], rates.get(other)) for other in named]
                lines.append([f"{load:g}", name, *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios)])
    return lines


def _mean_by_place(lists: list[list[float]]) -> list[float]:
    deepest = max((len(one) for one in lists), default=0)
    filled = [[*one, *[0.0] * (deepest - len(one))] for one in lists if one]
    return [sum(column) / len(filled) for column in zip(*filled, strict=True)]
