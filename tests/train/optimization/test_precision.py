"""Products in bf16 where the device has none: a warning that names the setting."""

import pytest
import torch

from aerie.engine import device
from aerie.train.optimization.precision import slow_here

CPU = torch.device("cpu")


@pytest.mark.parametrize("native", [True, False])
def test_emulated_products_are_warned_of(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_computes", lambda *_: native)
    warning = slow_here("bfloat16", CPU, "train.precision")
    assert warning is None if native else "train.precision=float32" in str(warning)
    assert slow_here("float32", CPU, "train.precision") is None
