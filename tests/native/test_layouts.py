"""What crosses between Python and C++ lies where both look for it."""

import ctypes

import pytest

from aerie.native import layouts
from aerie.native.layouts import STRUCTURES, check_layouts, layout_of
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
