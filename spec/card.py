"""What a head's card promises: how often its drafts are accepted, depth by depth.

Read by the composition root, so that a server can tell a head that falls far short. The card is the README.md that
`train/export.py` writes beside the weights, or `promise` in the head's file of `configs/head/`. No torch here.
"""

import math
import re
from itertools import accumulate
from operator import mul
from pathlib import Path

from contracts.config import SpecConfig
from spec.registry import Pair, Promised, same_place

_MEASURED = re.compile(r"accuracies((?: \d\.\d+)+)")
"""Share of drafts accepted at each depth among those accepted at the depth before."""


def promised(folder: Path, spec: SpecConfig, pairs: list[Pair]) -> tuple[tuple[float, ...], str] | None:
    """Shares of drafts with a node accepted at depth 1, 2, ..., down to where every draft of `spec` reaches, and where
    they come from. None where no card says anything, or nothing is drafted.
    """
    depths = [shape.depth for shape in spec.by_load] or [spec.depth]
    reached = min((depth for depth in depths if depth), default=0)
    found = _of_readme(folder) or _of_pair(folder, pairs)
    if found is None or not reached:
        return None
    shares, source = found
    return shares[:reached], source


def _of_readme(folder: Path) -> tuple[tuple[float, ...], str] | None:
    path = folder / "README.md"
    measured = _MEASURED.search(path.read_text(encoding="utf-8")) if path.exists() else None
    if measured is None:
        return None
    return tuple(accumulate(map(float, measured[1].split()), mul)), "the card in its folder"


def _of_pair(folder: Path, pairs: list[Pair]) -> tuple[tuple[float, ...], str] | None:
    for pair in pairs:
        if pair.promise is not None and same_place(pair.head, str(folder)):
            return shares_of(pair.promise), pair.promise.source
    return None


def shares_of(promise: Promised) -> tuple[float, ...]:
    """Shares by depth that give the promised length, if drafts are as likely to be accepted at every depth.

    With the share c at each depth the length is 1 + c + c^2 + ... + c^depth; EAGLE-3's acceptance is nearly flat by
    depth (Li et al., 2025, figure 7).
    """
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        length = math.fsum(middle**depth for depth in range(promise.depth + 1))
        low, high = (middle, high) if length < promise.length else (low, middle)
    return tuple(low**depth for depth in range(1, promise.depth + 1))
