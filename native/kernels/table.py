"""The C++ kernels of a CPU, by reference, and whether `engine.kernels` selects them. Called by the composition root."""

from collections.abc import Callable

from aerie.contracts.errors import ConfigError
from aerie.engine.attention import compiled_attention, host_attention
from aerie.engine.bindings import Kernels
from aerie.engine.model.layer import gated, mlp, rotated
from aerie.engine.model.norm import normed
from aerie.engine.model.packing import int8_pays, pack, pack_int8
from aerie.engine.model.stack import through
from aerie.engine.sampling.choose import choose, likeliest
from aerie.engine.sampling.ending import cut
from aerie.engine.sampling.noise import gumbel
from aerie.engine.state.future_map import publish, take
from aerie.engine.state.row_tables import slots
from aerie.native import products, rounding
from aerie.native.choice import Choice
from aerie.native.kernels import accept as accepts
from aerie.native.kernels import attention, ending, future_map, layer, noise, ranking, stack, trees
from aerie.native.kernels import choose as choices
from aerie.native.kernels import compact as moves
from aerie.native.kernels import mlp as mlps
from aerie.native.kernels import slots as places
from aerie.native.library import library_name, missing
from aerie.native.products import Multiplier
from aerie.native.trials import AMX, DOTS, PANELS
from aerie.spec.drafters.frontier import advance, children
from aerie.spec.round.compact import compact
from aerie.spec.trees.accept import accept
from aerie.spec.trees.ranking import log_likelihood
from aerie.spec.trees.tree import select


def cpp_kernels(choice: Choice | None = None) -> Kernels:
    """Compiles the kernels if needed. Each worker needs its own set, since the set stores what it reads of the worker's
    layers.
    """
    product = PANELS if choice is None else choice.way.product
    multiplier = Multiplier.FP32 if choice is None else choice.way.multiplier
    packs = {PANELS: products.pack, DOTS: products.pack_dots, AMX: products.pack_amx}
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
            int8_pays: lambda shapes: choice is None or rounding.int8_pays(shapes, choice.way),
            likeliest: choices.likeliest,
            log_likelihood: ranking.log_likelihood,
            mlp: mlps.mlp,
            normed: layer.normed,
            **({pack: packs[product]} if product in packs else {}),
            pack_int8: products.pack_int8_for(multiplier),
            publish: future_map.publish,
            select: trees.select,
            slots: places.slots,
            take: future_map.take,
            through: stack.Through(),
            rotated: layer.rotated,
        },
        name=library_name(),
        products=product,
        chosen=None if choice is None else choice.why,
        widens=choice is not None and choice.way.ours,
    )


def choose_cpp(setting: str, choose: Callable[[], Choice | None] | None = None) -> Kernels:
    """A CPU's kernels by `engine.kernels`: `auto` takes them if they compile, with the products that `choose` returns.
    Raises ConfigError if `cpp` is not possible.
    """
    why = missing()
    if why is None:
        choice = None if choose is None else choose()
        if choice is not None:
            choice.way.use()
        return cpp_kernels(choice)
    if setting == "cpp":
        raise ConfigError(f"engine.kernels is cpp, and {why}; set engine.kernels=auto", param="engine.kernels")
    return Kernels(missing=why)
