"""Compares how Python and the compiler lay out what crosses between them. Called when a worker is built."""

import ctypes

import numpy as np

from aerie.contracts.sampling import COLUMNS
from aerie.native.layers import LayerStructure, Norm
from aerie.native.library import library
from aerie.native.products import Matrix
from aerie.native.structs.board import BoardStructure
from aerie.native.structs.columns import columns_read
from aerie.native.structs.draft import Drafts
from aerie.native.structs.head import HeadStructure
from aerie.native.structs.model import Futures, Model, Tables
from aerie.native.structs.plan import Step
from aerie.native.structs.prompts import Prompts
from aerie.native.structs.tails import TailsStructure

STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "Norm": Norm,
    "Matrix": Matrix,
    "Layer": LayerStructure,
    "Model": Model,
    "Tables": Tables,
    "Futures": Futures,
    "Step": Step,
    "Board": BoardStructure,
    "Prompts": Prompts,
    "Drafts": Drafts,
    "Tails": TailsStructure,
    "Head": HeadStructure,
}
"""By their names in C++."""
_TYPES = {np.float32: "float", np.int32: "int32_t"}


def check_layouts() -> None:
    """Raises AssertionError where a structure differs: its kernels would read garbage."""
    for name, structure in STRUCTURES.items():
        ours, theirs = layout_of(structure), _compiled(name)
        assert ours == theirs, f"{name}: size and offsets are {ours} in Python and {theirs} in the library"


def check_columns() -> None:
    """Raises AssertionError if the kernels read a column that the tables lack, or read it as another type."""
    ours = {name: _TYPES[field.dtype] for name, field in COLUMNS.items()}
    for name, theirs in columns_read().items():
        assert ours.get(name) == theirs, f"{name}: the column is {ours.get(name)} in Python and {theirs} in the library"


def layout_of(structure: type[ctypes.Structure]) -> list[int]:
    """The size, then the offset of each field."""
    return [ctypes.sizeof(structure), *(getattr(structure, field[0]).offset for field in structure._fields_)]


def _compiled(name: str) -> list[int]:
    words = library().layout(name.encode())
    found: list[int] = []
    while words and words[len(found)] != -1:
        found.append(words[len(found)])
    return found
