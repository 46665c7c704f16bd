"""The figures and tables that a page takes from results.

A figure in a sentence is a link whose definition, at the foot of the page, names its file and its key:

    Chains of three commit [2.41][chain] tokens a step.

    [chain]: ../bench/results/compare.json "mode=chain temperature=0.8: acceptance_length"

A list of the file other than its cells is named behind the file, as in `drift.json#totals`, or before the conditions.
Before the key may stand `least`, `most`, `mean` or `count`, of all cells that are meant; behind it `%`, `ms` or `us`.

A table is made whole. Columns are a title and a text with keys in braces. Cells that agree in the keys without a format
are averaged; `by KEY` makes a column of every value of a key; `{tokens_per_s / depth=0 .2f}` divides by the cell that
differs in `depth` alone:

    <!-- table peers/cells.jsonl target!=SGLang
    server = {target} | by load = {output_tokens_per_s .0f} / {tpot.p50 ms.1f}
    -->
    <!-- end -->
"""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from aerie.bench.claims.results import Cell, ClaimError, Results, at

_TABLE = re.compile(r"(?s)<!-- table (.*?)-->\n(.*?)<!-- end -->")
_DEFINITION = re.compile(r'(?m)^\[([\w .-]+)\]: \S*?bench/results/(\S+)\s+"([^"]+)"$')
_LINK = re.compile(r"\]\(\S*?bench/results/(\S+\.jsonl?)\)")
_FIGURE = re.compile(r"(?<!`)\[(-?\d[\d,]*(?:\.\d+)?)\]\[([\w .-]+)\]")
_PLACE = re.compile(r"\{([\w.]+)(?: / (\w+)=([\w.]+))?(?: ([^}/]+))?\}")
_SCALES = {"": 1.0, "%": 100.0, "ms": 1e3, "us": 1e6}
_OF_SEVERAL: dict[str, Callable[[list[float]], float]] = {"least": min, "most": max, "mean": fmean, "count": len}
_WIDTH = 120


def sources(text: str) -> set[str]:
    """The results that a page uses, in a table, for a figure, or as a link beside what it says."""
    tables = {question.split()[0].partition("#")[0] for question, _ in _TABLE.findall(text)}
    figures = {name.partition("#")[0] for _, name, _ in _DEFINITION.findall(text)}
    return tables | figures | set(_LINK.findall(text))


def renewed(text: str, results: Results, root: str) -> str:
    """The page with every table and every figure as the results have them; `root` leads from it to the checkout.

    Raises ClaimError for a figure that is not defined, or one that its result does not have.
    """
    defined = {name: (file, question) for name, file, question in _DEFINITION.findall(text)}

    def figure(found: re.Match[str]) -> str:
        if found[2] not in defined:
            raise ClaimError(f"[{found[1]}][{found[2]}] has no definition that names a result")
        return f"[{_answer(results, *defined[found[2]], like=found[1])}][{found[2]}]"

    def table(found: re.Match[str]) -> str:
        return f"<!-- table {found[1]}-->\n{_table(results, found[1], root)}\n<!-- end -->"

    tables = _TABLE.sub(table, text)
    if unused := sorted(set(defined) - {name for _, name in _FIGURE.findall(text)}):
        raise ClaimError(f"no figure cites [{unused[0]}]")
    return _FIGURE.sub(figure, tables)


def _answer(results: Results, file: str, question: str, *, like: str) -> str:
    """The figure that a definition names, with as many places as `like`."""
    conditions, _, wanted = question.rpartition(":")
    words = wanted.split()
    of_several = words.pop(0) if words[0] in _OF_SEVERAL else ""
    key, scale = words[0], _SCALES[words[1] if len(words) > 1 else ""]
    part = f"#{conditions.split()[0][1:]}" if conditions.startswith("#") else ""
    cells = results.select(f"{file}{part} {conditions.removeprefix(part)}")
    values = [float(value) for cell in cells if (value := at(cell, key)) is not None]
    if not values or (len(values) > 1 and not of_several):
        raise ClaimError(f"{file} {question!r} has {len(values)} values; one is needed, or least, most, mean or count")
    value = _OF_SEVERAL[of_several](values) if of_several else values[0]
    places = len(like.partition(".")[2])
    return format(value * scale, f"{',' if ',' in like else ''}.{places}f")


def _table(results: Results, spec: str, root: str) -> str:
    question, _, columns = spec.partition("\n")
    titled = [part.partition(" = ") for part in re.split(r"\s*[|\n]\s*", columns.strip())]
    cells, everything = results.select(question), results.select(question.split()[0])
    across = next((title.removeprefix("by ") for title, _, _ in titled if title.startswith("by ")), None)
    values = list(dict.fromkeys(at(cell, across) for cell in cells)) if across else []
    labels = [text for title, _, text in titled if not title.startswith("by ") and not any(_formats(text))]
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(_filled(text, [cell], everything) for text in labels), []).append(cell)
    head: list[str] = []
    rows: list[list[str]] = [[] for _ in groups]
    for title, _, text in titled:
        spread = values if title.startswith("by ") else [None]
        head += [title if value is None else _plain(value) for value in spread]
        for row, group in zip(rows, groups.values(), strict=True):
            for value in spread:
                own = [cell for cell in group if value is None or at(cell, str(across)) == value]
                row.append(_filled(text, own, everything) if own else "-")
    lines = [head, ["---"] * len(head), *rows]
    made = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{made}\n\n{_caption(results, question.split()[0].partition('#')[0], root)}"


def _caption(results: Results, name: str, root: str) -> str:
    origin = results.origin(name)
    machine = origin.get("machine", origin)
    faults = "; it ".join(fault for word, fault in results.faults(name).items() if word != "stale")
    cores = "1 core" if machine.get("cores") == 1 else f"{machine.get('cores')} cores"
    said = (
        f"[{name}]({root}bench/results/{name}): `{origin.get('command')}`, {str(origin.get('at'))[:10]}, commit "
        f"{str(origin.get('commit'))[:7]}, {cores}, load {machine.get('load_average')}"
        f"{'. It ' if faults else ''}{faults}."
    )
    return textwrap.fill(said, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _formats(text: str) -> list[str]:
    return [form for *_, form in _PLACE.findall(text)]


def _filled(text: str, cells: list[Cell], everything: list[Cell]) -> str:
    """The text of a column for cells that are averaged; ratios are of each cell, so of one run."""

    def value(found: re.Match[str]) -> str:
        key, differing, base, form = found.groups()
        known = [one for cell in cells if (one := at(cell, key)) is not None]
        if not known:
            return "-"
        if not form:
            return _plain(known[0])
        if differing:
            known = [float(at(cell, key)) / at(_sibling(cell, differing, base, everything), key) for cell in cells]
        scale, point, places = form.partition(".")
        return format(fmean(map(float, known)) * _SCALES[scale], f"{point}{places}")

    return _PLACE.sub(value, text)


def _sibling(cell: Cell, differing: str, base: str, everything: list[Cell]) -> Cell:
    """The one cell of the file with `base` for `differing` and the other settings of this cell."""
    settings = {key: value for key, value in cell.items() if isinstance(value, str | int) and key != differing}
    found = [one for one in everything if str(one.get(differing)) == base and settings.items() <= one.items()]
    if len(found) != 1:
        raise ClaimError(f"{len(found)} cells have {differing}={base} and {settings}")
    return found[0]


def _plain(value: Any) -> str:
    return format(value, "g") if isinstance(value, float) else str(value)


def root_of(page: Path, home: Path) -> str:
    """The way from a page to the checkout, as links need it."""
    return "../" * (len(page.relative_to(home).parts) - 1)
