"""The learning rate over a run: warm-up, then a plateau with a linear decay to zero, or a cosine."""

import math

from torch.optim import Optimizer


def share(step: int, *, steps: int, warmup: int, decay: float) -> float:
    """The share of the full rate at `step`; it falls linearly over the last `decay` of the run."""
    remaining = (steps - step) / (decay * steps)
    return min(1.0, (step + 1) / warmup, remaining)


def warm_cosine(step: int, *, steps: int, warmup: float) -> float:
    """The share of the full rate at `step`: a linear rise over the first `warmup` of the run, then half a cosine."""
    rising = max(1, round(warmup * steps))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """A group may learn at a `share` of the rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("share", 1.0)
