"""Measured quantities in a page that no result is cited for."""

import re
from collections.abc import Iterator

_UNIT = (
    r"(?:%|x\b|times\b|ms\b|µs\b|s\b|milliseconds?|microseconds?|seconds?|minutes?|hours?|"
    r"tokens/s|tokens a second|[GM]i?B\b)"
)
_NUMBER = rf"(?<![\w.,/^-])(?<!= )(?<!=)(?:\d[\d,]*(?:\.\d+)?(?= ?{_UNIT})|\d+\.\d+(?![\d.]*\.\d| GHz))"
_SPELLED = (
    r"\b(?:half|third|quarter|tenth|two|three|four|five|six|seven|eight|nine|ten) "
    r"(?:of )?(?:an? )?(?:milli|micro)seconds?"
)
_ALONE_IN_A_CELL = r"(?<= \| )\d[\d,.]*(?= \|)"
_VERSION = r"\b(?:[A-Z][\w-]*|arXiv) \d+\.\d+"
_QUANTITY = re.compile(rf"{_VERSION}|({_NUMBER}|{_SPELLED}|{_ALONE_IN_A_CELL})")
_PASSED_OVER = re.compile(
    r"(?ms)^```.*?^```$|`[^`]*`"  # code
    r"|\]\([^)]*\)|^\[[^\]]+\]: \S+\s+\"[^\"]*\"$"  # where links lead
    r"|<!-- table .*?<!-- end -->|\[-?[\d,.]+\]\[[^\]]+\]"  # what a result is cited for
)
_GIVEN = "<!-- given"


def unsourced(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of every measured quantity without a source.

    A number with a unit of time, rate, share, ratio or size is one, and so are a decimal fraction that is not a
    version, and a number alone in a cell of a table. Numbers in code quotes are set, not measured; those of a paragraph
    with `<!-- given: WHY -->` are not measured either.
    """
    blanked = _PASSED_OVER.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    line = 1
    for paragraph in blanked.split("\n\n"):
        if _GIVEN not in paragraph:
            for found in _QUANTITY.finditer(paragraph):
                if found[1]:
                    yield line + paragraph[: found.start()].count("\n"), found[1]
        line += paragraph.count("\n") + 2
