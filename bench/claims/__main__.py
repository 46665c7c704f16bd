"""`python -m aerie.bench.claims`: whether README and docs say what the results say; `--write` renews them.

The code is 1 where a figure has no source, differs from its result, or where a result cannot carry a claim.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from aerie.bench.claims.pages import renewed, root_of, sources
from aerie.bench.claims.quantities import unsourced
from aerie.bench.claims.results import ClaimError, Results, published
from aerie.bench.origin import HOME


def pages(home: Path) -> list[Path]:
    return [home / "README.md", *sorted((home / "docs").rglob("*.md"))]


def faults(home: Path, results: Results, *, strict: bool) -> Iterator[str]:
    """Everything that is wrong with the figures of the pages; `strict` includes what `published` says."""
    used: set[str] = set()
    for page in pages(home):
        text, place = page.read_text(encoding="utf-8"), page.relative_to(home).as_posix()
        used |= sources(text)
        for line, figure in unsourced(text):
            yield f"{place}:{line}: {figure} has no source: cite its result, or quote it as code if it is set"
        try:
            if renewed(text, results, root_of(page, home)) != text:
                yield f"{place} differs from the results: make docs"
        except ClaimError as error:
            yield f"{place}: {error}"
    try:
        yield from published(results, used, strict=strict)
    except ClaimError as error:
        yield str(error)


def write(home: Path, results: Results) -> None:
    """Renews the tables and figures of all pages. Raises ClaimError."""
    for page in pages(home):
        text = page.read_text(encoding="utf-8")
        try:
            page.write_text(renewed(text, results, root_of(page, home)), encoding="utf-8")
        except ClaimError as error:
            raise ClaimError(f"{page.relative_to(home)}: {error}") from None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m aerie.bench.claims")
    parser.add_argument("--write", action="store_true", help="renew tables and figures of README and docs")
    chosen = parser.parse_args()
    results = Results(HOME / "bench/results")
    if chosen.write:
        write(HOME, results)
        return 0
    found = list(faults(HOME, results, strict=True))
    print("\n".join([*found, f"{len(found)} faults"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
