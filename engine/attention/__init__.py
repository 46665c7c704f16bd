"""Attention backends behind one dataclass of inputs. A backend must equal `reference` on the golden cases."""

import importlib.util
from typing import Any, Protocol

from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.engine.attention.inputs import AttentionInputs, AttentionShape, FixedPages
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.state.kv_pool import KVPool

Planned = Any
"""What a backend's `plan` returns; opaque to everyone else."""


class Attention(Protocol):
    """Call `plan` once for a pass, then `run` for each of its layers."""

    name: str

    def plan(self, inputs: AttentionInputs) -> Planned: ...

    def see(self, planned: Planned, words: Tensor) -> Planned:
        """The same plan for other ancestor words [queries]: the levels of a draft share rows, queries and pages."""

    def run(self, planned: Planned, query: Tensor, pool: KVPool, layer: int) -> Tensor:
        """query [queries, heads, head_dim] -> the same shape. The pool already holds keys and values of the queries."""


class Capturable(Attention, Protocol):
    """A backend whose `run` may be captured in a CUDA graph and replayed for other pages: one that has `hold`.

    The host fixes rows and queries; everything that depends on true lengths stays on the device.
    """

    def splits(self, rows: int, queries: int) -> bool:
        """Whether long rows of such a pass, with as many queries each, are worth splitting: each layer then merges."""

    def hold(self, inputs: AttentionInputs, pages: FixedPages, *, split: bool) -> Planned:
        """A plan for these rows and queries that is valid for whatever `pages` hold; `split` allows to split rows.

        Kernels that are captured with it read fixed addresses: its own buffers and `pages`, and `inputs.prefix_lens`
        and the words (those of `see` too), which the graph itself fills. `run` launches the same grid for all lists.
        """

    def renew(self, held: Planned, kv_indptr: Tensor) -> None:
        """Call it before a replay, with this step's kv_indptr [rows + 1] on the host: plans what depends on it, on the
        current stream, without waiting.

        At most two steps are in flight: a pinned buffer may be written again once the copy of the step before last has
        run, which an event marks.
        """


def planned_for(attention: Attention, inputs: AttentionInputs) -> Planned:
    """A pass's plan: the one that its graph was captured with, else a new one."""
    if inputs.held is None:
        return attention.plan(inputs)
    return inputs.held if inputs.words is None else attention.see(inputs.held, inputs.words)


def make_attention(name: str, shape: AttentionShape | None = None, kernels: Kernels = REFERENCES) -> Attention:
    """`auto` is the fastest backend that the device and the installed packages allow. Without a shape: a CPU's
    backends.

    Raises ConfigError if the backend is missing or cannot serve the shape.
    """
    if name == "auto":
        name = _fastest(shape)
    if name == "host":
        return kernels[host_attention](shape)
    if name == "cpp":
        return kernels[compiled_attention](shape)
    if name == "cpu":
        return host_attention(shape)
    if name == "reference":
        from aerie.engine.attention.reference import ReferenceAttention

        return ReferenceAttention()
    if name not in _PACKAGES:
        known = ", ".join(("auto", "cpp", "cpu", "reference", *_PACKAGES))
        raise ConfigError(f"attention backend {name!r} is not built in; known: {known}", param="engine.attention")
    if shape is None or shape.device.type != "cuda":
        raise ConfigError(
            f"engine.attention is {name}, which needs a GPU, and this deployment runs on a CPU; set "
            f"engine.attention=auto",
            param="engine.attention",
        )
    if not _installed(name):
        raise ConfigError(
            f"engine.attention is {name}, and the package {_PACKAGES[name]} is not installed; "
            f"pip install -e '.[gpu]' brings it, or set engine.attention=auto",
            param="engine.attention",
        )
    if name == "triton":
        from aerie.engine.attention.triton import TritonAttention

        return TritonAttention(shape)
    from aerie.engine.attention.flashinfer import FlashInferAttention

    return FlashInferAttention(shape)


def host_attention(shape: AttentionShape | None) -> Attention:
    """The fastest backend of a CPU."""
    from aerie.engine.attention.cpu import CpuAttention

    return CpuAttention()


def compiled_attention(shape: AttentionShape | None) -> Attention:
    """`engine.attention: cpp`, part of a worker's C++ kernels. Raises ConfigError if the worker has none."""
    raise ConfigError(
        "engine.attention is cpp, and this worker has no C++ kernels; set engine.attention=auto",
        param="engine.attention",
    )


_PACKAGES = {"flashinfer": "flashinfer-python", "triton": "triton"}
"""Backends of a GPU, and the packages that they need beside Aerie's own dependencies."""


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _fastest(shape: AttentionShape | None) -> str:
    if shape is None or shape.device.type != "cuda":
        return "host"
    if _installed("flashinfer"):
        from aerie.engine.attention.flashinfer_modules import loadable
        from aerie.engine.attention.flashinfer_variant import refusal

        # Without Triton to fall back to, FlashInfer's own error says what is missing.
        if refusal(shape) is None and (not _installed("triton") or loadable(shape)):
            return "flashinfer"
    return "triton" if _installed("triton") else "reference"
