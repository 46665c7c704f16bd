"""The kinds of drafters. Called by `build`; a new kind is a file of this folder and a line here."""

from pathlib import Path

from aerie.spec.drafters import eagle3, peagle
from aerie.spec.drafters.drafter import Kind

KINDS: tuple[Kind, ...] = (
    peagle.KIND,
    eagle3.KIND,
)
"""The first kind that recognizes a folder opens it; the last one opens, or rejects by name, all that is left."""


def kind_of(folder: Path) -> Kind:
    """The kind of the drafter in a folder."""
    return next(kind for kind in KINDS if kind.recognizes(folder))
