"""Splits a batch whose rows are padded to the longest, so that one long prompt does not lengthen every short row.
Called by the CPU's attention when it plans a pass.
"""

from itertools import accumulate

_SHORT = 256
"""Below this many positions padding is cheap."""
_GATHER = 8
"""Gathering a position costs about as much as this many queries over it."""


def parts_of(queries: list[int], pages: list[int], page_size: int) -> list[list[int]]:
    """Rows by part, for rows with `queries` and `pages` each. Splits as long as a split saves half of the padded work.
    Short rows stay together, since a part costs some operations per layer.
    """
    if max(pages) * page_size < _SHORT:
        return [list(range(len(pages)))]
    waiting, parts = [sorted(range(len(pages)), key=pages.__getitem__)], []
    while waiting:
        rows = waiting.pop()
        cut = _cut([queries[row] for row in rows], [pages[row] for row in rows])
        if cut:
            waiting += [rows[:cut], rows[cut:]]
        else:
            parts.append(sorted(rows))
    return parts


def _cut(queries: list[int], pages: list[int]) -> int:
    """Where rows of ascending `pages` split into two parts with less than half the work; 0 if nowhere."""
    rows = len(pages)
    below = list(accumulate(queries, max))
    above = list(accumulate(reversed(queries), max))[::-1]

    def work(cut: int) -> int:
        return _work(cut, pages[cut - 1], below[cut - 1]) + _work(rows - cut, pages[-1], above[cut])

    best = min(range(1, rows), key=work, default=0)
    return best if best and 2 * work(best) < _work(rows, pages[-1], below[-1]) else 0


def _work(rows: int, longest: int, most: int) -> int:
    """Padded products of `rows` rows with up to `longest` pages and `most` queries."""
    return rows * longest * (_GATHER + most)
