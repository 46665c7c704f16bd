"""The columns of sampling fields, as the library asks for them (src/columns.h)."""

import ctypes

from aerie.contracts.sampling import COLUMNS
from aerie.engine.state.row_tables import RowTables
from aerie.native.library import library


def columns_read() -> dict[str, str]:
    """The C++ type of each column that the kernels read, by name, in their order."""
    lines = (line.split() for line in library().columns().decode().splitlines())
    return {name: kind for kind, name in lines}


def native_columns(tables: RowTables) -> "ctypes.Array[ctypes.c_void_p]":
    addresses = [tables.sampling[name].data_ptr() for name in columns_read()]
    return (ctypes.c_void_p * len(addresses))(*addresses)


def needs_beyond() -> tuple[str, ...]:
    """The flags of Needs that stem from columns which the kernels do not read."""
    read = columns_read()
    return tuple({field.need for name, field in COLUMNS.items() if field.need is not None and name not in read})
