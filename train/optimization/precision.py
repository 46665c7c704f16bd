"""What the products of a training run are computed in; weights and sums stay in fp32."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Precision = Literal["float32", "bfloat16"]


def dtype_of(precision: Precision) -> "torch.dtype":
    import torch  # takes a second, which reading a config need not

    return torch.float32 if precision == "float32" else torch.bfloat16


def slow_here(precision: Precision, device: "torch.device", setting: str) -> str | None:
    """A warning where the device emulates these products; `setting` is the one that says so. None elsewhere."""
    import torch

    from aerie.contracts.config import Config
    from aerie.engine.device import resolve_dtype

    if precision == "float32" or resolve_dtype(Config(), precision, device) is torch.bfloat16:
        return None
    return (
        f"{setting} is {precision}, and this {device.type} multiplies no bf16: it emulates that, many times slower "
        f"than it computes fp32; set {setting}=float32"
    )
