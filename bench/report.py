"""Report of a sweep: Markdown, a page that needs no network, and the pictures; all from the folder's own files."""

import base64
import html
from pathlib import Path
from typing import Any

from bench.cells import read_cells, read_sweep
from bench.config import SweepError
from bench.plots import draw_all
from bench.table import Row, rows

_COLUMNS: tuple[tuple[str, str, float, str], ...] = (
    ("TPOT p50 (ms)", "tpot_p50", 1e3, ".1f"),
    ("TPOT p99 (ms)", "tpot_p99", 1e3, ".1f"),
    ("TTFT p50 (ms)", "ttft_p50", 1e3, ".0f"),
    ("TTFT p99 (ms)", "ttft_p99", 1e3, ".0f"),
    ("tokens/s", "throughput", 1, ".0f"),
    ("speed-up", "speedup", 1, ".2f"),
    ("goodput/s", "goodput", 1, ".2f"),
    ("acceptance length", "acceptance_length", 1, ".2f"),
    ("J/token", "joules_per_token", 1, ".3f"),
    ("cost per 10^6 tokens", "cost", 1, ".2f"),
    ("energy saved", "energy_saved", 100, ".0f"),
)
"""Heading, figure, scale, format; a column without any value is left out."""
_DEFINITIONS = (
    "TTFT: first attempt to first text. TPOT: time from first to last text over output tokens - 1. Tokens are the "
    "server's own count. Throughput: tokens that fell into the steady window, from the end of the warm-up to the last "
    "request sent. Speed-up: throughput over the baseline's, same repeat. ± is half of a 95 % interval over repeats "
    "(Student's t)."
)
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --page: #fdfdfc; --line: #d7d7d2; --faint: #5d5d58 }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e4; --page: #161616; --line: #3a3a38; --faint: #a3a39d } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 62rem; padding: 0 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
figure { margin: 1.5rem 0 } img { max-width: 100%; background: #fff; border-radius: 4px }
p, figcaption, pre { color: var(--faint) } pre { white-space: pre-wrap; font-size: .8rem }
"""
_FRAME = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    "<title>Load test</title><style>{style}</style></head><body>{body}</body></html>\n"
)


def write_report(folder: Path) -> list[Path]:
    """report.md, report.html and the PNGs beside the cells; returns what was written."""
    sweep, cells = read_sweep(folder), read_cells(folder)
    if not cells:
        raise SweepError(f"{folder} holds no measured cell yet; run the sweep again with --out {folder}")
    named = [target["name"] for target in sweep["targets"]]
    baseline = next((target["name"] for target in sweep["targets"] if target["baseline"]), named[0])
    table = rows(cells, baseline)
    written: list[Path] = []
    parts: list[tuple[str, list[Row], list[Path]]] = []
    for workload, mode in sorted({(row.workload, row.mode) for row in table}):
        own = [row for row in table if (row.workload, row.mode) == (workload, mode)]
        parts.append(
            (f"{Path(workload).stem}, by {mode}", own, draw_all(own, _place(folder, parts), baseline=baseline))
        )
        written += parts[-1][2]
    for name, text in (("report.md", _markdown(folder, parts, cells)), ("report.html", _page(parts, cells))):
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    return written


def _place(folder: Path, earlier: list[Any]) -> Path:
    """The first workload's pictures stand beside the report, others' in folders of their own."""
    return folder / f"pictures-{len(earlier) + 1}" if earlier else folder


def _table(own: list[Row]) -> list[list[str]]:
    shown = [column for column in _COLUMNS if any(column[1] in row.figures for row in own)]
    lines = [[own[0].mode, "target", *(column[0] for column in shown)]]
    for row in own:
        failed = f" ({row.failed} failed)" if row.failed else ""
        found = [row.figures.get(name) for _, name, _, _ in shown]
        texts = [
            "-" if figure is None else figure.written(scale, form) + (" %" if name == "energy_saved" else "")
            for figure, (_, name, scale, form) in zip(found, shown, strict=True)
        ]
        lines.append([f"{row.load:g}", row.target + failed, *texts])
    return lines


def _notes(own: list[Row], cells: list[dict[str, Any]]) -> list[str]:
    cautions = {line["caution"] for row in own for line in row.lines if line.get("caution")}
    reasons = {f"{line['target']} failed: {line['reason']}" for row in own for line in row.lines if "reason" in line}
    energy = {line.get("joules_per_token") for line in cells} - {None}
    return [*sorted(cautions), *sorted(reasons), *(["energy: not measured"] if energy == {"not measured"} else [])]


def _source(cells: list[dict[str, Any]]) -> str:
    last = max((line["provenance"] for line in cells), key=lambda told: told["at"])
    return "\n".join(f"{key}: {value}" for key, value in last.items())


def _markdown(folder: Path, parts: list[tuple[str, list[Row], list[Path]]], cells: list[dict[str, Any]]) -> str:
    text = ["# Load test", "", _DEFINITIONS, ""]
    for title, own, pictures in parts:
        head, *body = _table(own)
        text += [f"## {title}", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
        text += [f"| {' | '.join(line)} |" for line in body]
        text += ["", *(f"* {note}" for note in _notes(own, cells)), ""]
        text += [f"![{picture.stem}]({picture.relative_to(folder).as_posix()})" for picture in pictures]
        text += [""]
    return "\n".join([*text, "```", _source(cells), "```", ""])


def _page(parts: list[tuple[str, list[Row], list[Path]]], cells: list[dict[str, Any]]) -> str:
    body = ["<h1>Load test</h1>", f"<p>{html.escape(_DEFINITIONS)}</p>"]
    for title, own, pictures in parts:
        head, *lines = _table(own)
        cells_of = [f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in line)}</tr>" for line in lines]
        heads = "".join(f"<th>{html.escape(text)}</th>" for text in head)
        body += [f"<h2>{html.escape(title)}</h2>", f"<table><tr>{heads}</tr>{''.join(cells_of)}</table>"]
        body += [f"<p>{html.escape(note)}</p>" for note in _notes(own, cells)]
        for picture in pictures:
            data = base64.b64encode(picture.read_bytes()).decode()
            body.append(f'<figure><img alt="{picture.stem}" src="data:image/png;base64,{data}"></figure>')
    body.append(f"<pre>{html.escape(_source(cells))}</pre>")
    return _FRAME.format(style=_STYLE, body="".join(body))
