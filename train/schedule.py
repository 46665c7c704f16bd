"""The learning rate over a run: warm-up, plateau, linear decay to nothing."""

from torch.optim import Optimizer


def share(step: int, *, steps: int, warmup: int, decay: float) -> float:
    """The share of the full rate at `step`; the last `decay` of the run falls linearly."""
    remaining = (steps - step) / (decay * steps)
    return min(1.0, (step + 1) / warmup, remaining)


def set_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
