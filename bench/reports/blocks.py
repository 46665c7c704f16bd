"""The blocks of a report and its two forms: Markdown with linked pictures, and one page that embeds them."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --page: #fdfdfc; --line: #d7d7d2; --faint: #5d5d58 }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e4; --page: #161616; --line: #3a3a38; --faint: #a3a39d } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 62rem; padding: 0 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left }
figure { margin: 1.5rem 0 } img { max-width: 100%; background: #fff; border-radius: 4px }
p, li, pre { color: var(--faint) } pre { white-space: pre-wrap; font-size: .8rem }
"""
_FRAME = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    "<title>{title}</title><style>{style}</style></head><body>{body}</body></html>\n"
)


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Points:
    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Table:
    head: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Code:
    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    path: Path


Block = Heading | Text | Points | Table | Code | Picture


def as_markdown(blocks: Sequence[Block], folder: Path) -> str:
    """Markdown; pictures are linked relative to `folder`."""
    return "\n\n".join(_markdown(block, folder) for block in blocks) + "\n"


def as_page(blocks: Sequence[Block], title: str) -> str:
    """One HTML page that needs no other file and no network."""
    return _FRAME.format(style=_STYLE, title=html.escape(title), body="".join(_html(block) for block in blocks))


def _markdown(block: Block, folder: Path) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {text}"
        case Text(text):
            return text
        case Points(texts):
            return "\n".join(f"* {text}" for text in texts)
        case Code(text):
            return f"```\n{text}\n```"
        case Picture(path):
            return f"![{path.stem}]({path.relative_to(folder).as_posix()})"
        case Table(head, lines):
            rows = [head, ["---"] * len(head), *lines]
            return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Text(text):
            return f"<p>{html.escape(text)}</p>"
        case Points(texts):
            return f"<ul>{''.join(f'<li>{html.escape(text)}</li>' for text in texts)}</ul>"
        case Code(text):
            return f"<pre>{html.escape(text)}</pre>"
        case Picture(path):
            data = base64.b64encode(path.read_bytes()).decode()
            return f'<figure><img alt="{path.stem}" src="data:image/png;base64,{data}"></figure>'
        case Table(head, lines):
            heads = "".join(f"<th>{html.escape(text)}</th>" for text in head)
            rows = "".join(f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in line)}</tr>" for line in lines)
            return f"<table><tr>{heads}</tr>{rows}</table>"
