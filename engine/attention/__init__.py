"""Attention backends behind one dataclass of inputs; a backend is right when it equals `reference` on the golden
cases.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from contracts.errors import ConfigError
from engine.attention.inputs import AttentionInputs
from engine.kv_pool import KVPool

Planned = Any
"""What a backend's `plan` made of the inputs; opaque to everyone else."""


class Attention(Protocol):
    """`plan` once for a pass, then `run` for each of its layers."""

    name: str

    def plan(self, inputs: AttentionInputs) -> Planned: ...

    def see(self, planned: Planned, words: Tensor) -> Planned:
        """The same rows, queries and pages with other ancestor words [queries]: the levels of a draft share all
        else.
        """

    def run(self, planned: Planned, query: Tensor, pool: KVPool, layer: int) -> Tensor:
        """query [queries, heads, head_dim] -> the same shape; keys and values of the queries are in the pool
        already.
        """


class Capturable(Attention, Protocol):
    """A backend whose `run` may be captured in a CUDA graph and replayed for other pages: those that have `hold`.

    The host fixes rows and queries, whatever is held; everything that depends on true lengths stays on the device.
    """

    def hold(self, inputs: AttentionInputs, pages: int) -> Planned:
        """A plan of these rows and queries, good for any page lists of at most `pages` in all.

        Kernels that are captured with it read addresses that never change: its own buffers, and `inputs.prefix_lens` and
        words (those of `see` too), which the graph itself fills. `run` launches the same grid whatever the lists are.
        """

    def renew(self, held: Planned, inputs: AttentionInputs) -> None:
        """Before a replay: this step's page lists into the buffers of `held`, on the current stream, without a wait.

        `inputs` has as many rows and queries as the plan was made for. At most two steps are in flight: a pinned buffer
        may be written again once the copy of the step before last has run, which an event tells.
        """


def make_attention(name: str, device: torch.device | str = "cpu") -> Attention:
    """`auto` is the fastest backend of the device."""
    from engine.attention.cpu import CpuAttention
    from engine.attention.reference import ReferenceAttention

    backends: dict[str, type[Attention]] = {"cpu": CpuAttention, "reference": ReferenceAttention}
    if name == "auto":
        name = "cpu" if torch.device(device).type == "cpu" else "reference"
    if name not in backends:
        raise ConfigError(
            f"attention backend {name!r} is not built in; known: {', '.join(backends)}", param="engine.attention"
        )
    return backends[name]()
