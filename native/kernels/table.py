"""The C++ kernels of a CPU, by reference, and whether `engine.kernels` selects them. Called by the composition root."""

from contracts.errors import ConfigError
from engine.attention import compiled_attention, host_attention
from engine.choose import choose, likeliest
from engine.ending import cut
from engine.future_map import publish, take
from engine.kernels.bindings import Kernels
from engine.layer import gated, mlp, turned
from engine.noise import gumbel
from engine.norm import normed
from engine.packing import pack, pack_int8
from engine.row_tables import slots
from engine.stack import through
from native import products
from native.kernels import (
    accept as accepts,
)
from native.kernels import (
    attention,
    ending,
    future_map,
    layer,
    noise,
    ranking,
    stack,
    trees,
)
from native.kernels import (
    choose as choices,
)
from native.kernels import (
    compact as moves,
)
from native.kernels import (
    mlp as mlps,
)
from native.kernels import (
    slots as places,
)
from native.library import library_name, missing
from spec.accept import accept
from spec.frontier import advance, children
from spec.ranking import log_likelihood
from spec.round import compact
from spec.tree import select


def cpp_kernels() -> Kernels:
    """Compiles the kernels if needed. Each worker needs its own set, since the set stores what it reads of the worker's
    layers.
    """
    return Kernels(
        "cpp",
        {
            accept: accepts.accept,
            advance: trees.advance,
            children: trees.children,
            choose: choices.choose,
            compact: moves.compact,
            compiled_attention: attention.compiled_attention,
            cut: ending.cut,
            gated: layer.gated,
            gumbel: noise.gumbel,
            host_attention: attention.host_attention,
            likeliest: choices.likeliest,
            log_likelihood: ranking.log_likelihood,
            mlp: mlps.mlp,
            normed: layer.normed,
            pack: products.pack,
            pack_int8: products.pack_int8,
            publish: future_map.publish,
            select: trees.select,
            slots: places.slots,
            take: future_map.take,
            through: stack.Through(),
            turned: layer.turned,
        },
        name=library_name(),
    )


def choose_cpp(setting: str) -> Kernels:
    """A CPU's kernels by `engine.kernels`: `auto` takes them if they compile. Raises ConfigError if `cpp` is not
    possible.
    """
    why = missing()
    if why is None:
        return cpp_kernels()
    if setting == "cpp":
        raise ConfigError(f"engine.kernels is cpp, and {why}; set engine.kernels=auto", param="engine.kernels")
    return Kernels(missing=why)
