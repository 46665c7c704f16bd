"""The report of a sweep, made from the folder's own files: Markdown, a page that needs no network, and the pictures."""

from pathlib import Path
from typing import Any

from aerie.bench.cells import read_cells, read_sweep, read_trials
from aerie.bench.config import SweepError
from aerie.bench.reports.blocks import Block, Code, Heading, Picture, Points, Table, Text, as_markdown, as_page
from aerie.bench.reports.flags import flags_of, trials_of
from aerie.bench.reports.plots import draw_all
from aerie.bench.reports.table import Row, over_each_other, rows

_COLUMNS: tuple[tuple[str, str, float, str], ...] = (
    ("TPOT p50 (ms)", "tpot_p50", 1e3, ".1f"),
    ("TPOT p99 (ms)", "tpot_p99", 1e3, ".1f"),
    ("TTFT p50 (ms)", "ttft_p50", 1e3, ".0f"),
    ("TTFT p99 (ms)", "ttft_p99", 1e3, ".0f"),
    ("E2E p50 (ms)", "e2e_p50", 1e3, ".0f"),
    ("ITL p99 (ms)", "itl_p99", 1e3, ".0f"),
    ("tokens/s", "throughput", 1, ".0f"),
    ("with drain", "throughput_with_drain", 1, ".0f"),
    ("speed-up", "speedup", 1, ".2f"),
    ("goodput/s", "goodput", 1, ".2f"),
    ("acceptance length", "acceptance_length", 1, ".2f"),
    ("J/token", "joules_per_token", 1, ".3f"),
    ("energy saved (%)", "energy_saved", 100, ".0f"),
    ("cost per 10^6 tokens", "cost", 1, ".2f"),
    ("machine time saved (%)", "time_saved", 100, ".0f"),
)
"""Heading, figure, scale, format; a column without any value is left out."""
_DEFINITIONS = (
    "TTFT: first attempt to first text. TPOT: time from first to last text over output tokens - 1. ITL: time between "
    "pieces, which hold several tokens under speculation. Tokens are the server's own count. Throughput: tokens that "
    "fell into the steady window, from the end of the warm-up to the last request sent; with drain: to the last that "
    "ended. A 99th percentile needs 200 requests. Speed-up: throughput over the "
    "baseline's, same repeat; machine time saved by token, and so cost, is 1 - 1 / speed-up. ± is half of a 95 % "
    "interval over repeats (Student's t)."
)


def write_report(folder: Path) -> list[Path]:
    """Writes report.md, report.html and the PNGs beside the cells; returns the paths."""
    sweep, cells = read_sweep(folder), read_cells(folder)
    named, baseline = _names(sweep)
    blocks: list[Block] = [Heading("Load test", 1), Text(_DEFINITIONS)]
    pictures: list[Path] = []
    for number, own in enumerate(_parts(folder, sweep, cells), start=1):
        place = folder if number == 1 else folder / f"pictures-{number}"  # the first part's are beside the report
        title = f"{Path(own[0].workload).stem}, at most {sweep['max_tokens']} tokens an answer"
        drawn = draw_all(own, place, named, baseline=baseline, title=title)
        blocks += _part(own, named, drawn)
        pictures += drawn
    blocks += [*_targets(sweep, cells, read_trials(folder)), Heading("Machine"), Code(_source(cells))]
    texts = {"report.md": as_markdown(blocks, folder), "report.html": as_page(blocks, "Load test")}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [*pictures, *(folder / name for name in texts)]


def tables(folder: Path) -> list[tuple[str, Table]]:
    """Title and table of each part of the report, for a terminal."""
    return [(_title(own), _table(own)) for own in _parts(folder, read_sweep(folder), read_cells(folder))]


def _names(sweep: dict[str, Any]) -> tuple[list[str], str]:
    """Names of the targets, and of the baseline among them."""
    named = [target["name"] for target in sweep["targets"]]
    return named, next((target["name"] for target in sweep["targets"] if target["baseline"]), named[0])


def _parts(folder: Path, sweep: dict[str, Any], cells: list[dict[str, Any]]) -> list[list[Row]]:
    """Rows by workload and kind of load. Raises SweepError if nothing was measured."""
    if not cells:
        raise SweepError(f"{folder} holds no measured cell yet; run the sweep again with --out {folder}")
    named, baseline = _names(sweep)
    table = sorted(rows(cells, baseline), key=lambda row: (row.load, named.index(row.target)))
    kinds = sorted({(row.workload, row.mode) for row in table})
    return [[row for row in table if (row.workload, row.mode) == kind] for kind in kinds]


def _title(own: list[Row]) -> str:
    return f"{Path(own[0].workload).stem}, by {own[0].mode}"


def _table(own: list[Row]) -> Table:
    shown = [column for column in _COLUMNS if any(column[1] in row.figures for row in own)]
    lines = []
    for row in own:
        failed = f" ({row.failed} failed)" if row.failed else ""
        found = [row.figures.get(name) for _, name, _, _ in shown]
        texts = [
            "-" if figure is None else figure.written(scale, form)
            for figure, (_, _, scale, form) in zip(found, shown, strict=True)
        ]
        lines.append([f"{row.load:g}", row.target + failed, *texts])
    return Table([own[0].mode, "target", *(column[0] for column in shown)], lines)


def _part(own: list[Row], named: list[str], pictures: list[Path]) -> list[Block]:
    blocks: list[Block] = [Heading(_title(own)), _table(own)]
    if notes := _notes(own):
        blocks.append(Points(notes))
    if len({row.target for row in own}) > 2:
        heads = [own[0].mode, "tokens/s of", *(f"over {name}" for name in named)]
        blocks += [Heading("Each beside each", 3), Table(heads, over_each_other(own, named))]
    return [*blocks, *map(Picture, pictures)]


def _notes(own: list[Row]) -> list[str]:
    lines = [line for row in own for line in row.lines]
    cautions = {line["caution"] for line in lines if line.get("caution")}
    reasons = {f"{line['target']} failed: {line['reason']}" for line in lines if "reason" in line}
    unmeasured = {line.get("joules_per_token") for line in lines} - {None} == {"not measured"}
    unreal = set().union(*(labels_of(line) for line in lines))
    return [*sorted(unreal), *sorted(cautions), *sorted(reasons), *(["energy: not measured"] if unmeasured else [])]


def labels_of(line: dict[str, Any]) -> set[str]:
    """What the server of a cell reported as simulated about itself, in its own capitals."""
    reported = ((line.get("server") or {}).get("config") or {}).get("engine") or {}
    return {f"{line['target']}: {reported[key]}" for key in ("weights", "acceptance") if reported.get(key)}


def _targets(sweep: dict[str, Any], cells: list[dict[str, Any]], tried: list[dict[str, Any]]) -> list[Block]:
    """Every flag of every target, and how it was chosen."""
    blocks: list[Block] = [Heading("Targets"), Points(flags_of(sweep, cells))]
    if tried:
        blocks += [
            Heading("Settings tried", 3),
            Text("Tokens a second of short trials before the sweep; the sweep runs each load with its fastest."),
            Table(*trials_of(tried)),
        ]
    return blocks


def _source(cells: list[dict[str, Any]]) -> str:
    last = max((line["provenance"] for line in cells), key=lambda reported: reported["at"])
    return "\n".join(f"{key}: {value}" for key, value in last.items())
