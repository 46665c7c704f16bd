"""What crosses between Python and C++ lies where both look for it."""

import ctypes
from dataclasses import replace

import pytest

from aerie.contracts.sampling import COLUMNS
from aerie.engine.sampling.choose import FILTER_COLUMNS
from aerie.engine.sampling.edits import PENALTIES
from aerie.engine.state.row_tables import RowTables
from aerie.native import layouts
from aerie.native.layouts import STRUCTURES, check_columns, check_layouts, layout_of
from aerie.native.structs import columns
from aerie.native.structs.columns import columns_read, native_columns, needs_beyond
from aerie.native.structs.model import Tables
from tests.native.cpp_here import needs_cpp

pytestmark = needs_cpp


def test_every_structure_is_laid_out_alike() -> None:
    check_layouts()
    assert all(len(layout_of(structure)) == 1 + len(structure._fields_) > 2 for structure in STRUCTURES.values())


@pytest.mark.parametrize("name", STRUCTURES)
def test_power_a_field_too_many_is_seen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    class Longer(ctypes.Structure):
        _fields_ = (*STRUCTURES[name]._fields_, ("another", ctypes.c_long))

    monkeypatch.setitem(layouts.STRUCTURES, name, Longer)
    with pytest.raises(AssertionError, match=f"{name}: size and offsets"):
        check_layouts()


def test_power_a_field_of_another_size_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Narrow(ctypes.Structure):
        _fields_ = (("pages", ctypes.c_int32), ("noise_keys", ctypes.c_int32), *Tables._fields_[2:])

    monkeypatch.setitem(layouts.STRUCTURES, "Tables", Narrow)
    with pytest.raises(AssertionError, match="Tables"):
        check_layouts()


def test_the_kernels_read_columns_of_the_row_tables() -> None:
    check_columns()
    tables = RowTables(2, 1, 16)
    assert columns_read().keys() == {"temperature", *FILTER_COLUMNS, *PENALTIES} and not needs_beyond()
    assert list(native_columns(tables)) == [tables.sampling[name].data_ptr() for name in columns_read()]


def test_power_a_column_of_another_type_or_name_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "COLUMNS", COLUMNS | {"top_k": replace(COLUMNS["top_k"], kind=float)})
    with pytest.raises(AssertionError, match="top_k: the column is float in Python and int32_t in the library"):
        check_columns()
    monkeypatch.setattr(layouts, "COLUMNS", {name: field for name, field in COLUMNS.items() if name != "top_k"})
    with pytest.raises(AssertionError, match="top_k: the column is None in Python"):
        check_columns()


def test_a_need_that_the_kernels_cannot_meet_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    read = columns_read()
    monkeypatch.setattr(columns, "columns_read", lambda: {name: read[name] for name in ("temperature", "top_k")})
    assert "filters" in needs_beyond()
