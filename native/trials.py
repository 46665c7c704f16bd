"""Times the ways to compute a model's products on this machine. Called by `choice`, while a model is loaded, and by
`aerie probe kernels`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from aerie.engine.model.config import ModelConfig
from aerie.engine.model.matrix import Rounded
from aerie.engine.model.packing import HalfPacked, Packed
from aerie.native.library import library
from aerie.native.pages import LargePages
from aerie.native.products import Matrix, Multiplier, Panels, amx_here, dots_here

Shape = tuple[int, int]
"""[out, in]"""
PANELS, DOTS, AMX, FP16 = "panels", "dots", "amx", "fp16"
"""Aerie's own product with weights widened to fp32, its own with dot products of bf16 and with AMX, and torch's of
FBGEMM.
"""
_COMPARED = (1, 2, 7, 16, 64)
"""Numbers of tokens whose results `steady` compares."""
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 12


@dataclass(frozen=True, slots=True)
class Way:
    """A way to compute all products of a model, for any number of tokens."""

    product: str
    threads: int
    far: bool = False
    """Whether Aerie's product in vectors asks memory for weights far ahead, which pays where no cache holds them."""
    multiplier: Multiplier = Multiplier.FP32
    """Of Aerie's product."""

    @property
    def ours(self) -> bool:
        return self.product != FP16

    def use(self) -> None:
        """For this process, from now on."""
        torch.set_num_threads(self.threads)
        library().use_threads(self.threads)
        library().read_far_ahead(self.far)


def own_products(*, rounds: bool) -> dict[str, Multiplier]:
    """Aerie's own on this CPU, the most preferred first. `rounds` is whether they may round activations to bf16."""
    found = {PANELS: Multiplier.FP32}
    if rounds and dots_here():
        found[DOTS] = Multiplier.DOTS
    if amx_here():
        found[AMX] = Multiplier.AMX_BF16 if rounds else Multiplier.AMX
    return found


def reaches(product: str) -> tuple[bool, ...]:
    """How far ahead one of Aerie's own products can ask memory for weights."""
    return (False,) if product == AMX else (False, True)


def shapes_of(model: ModelConfig) -> dict[str, Shape]:
    """The merged matrices of a layer."""
    heads = (model.heads + 2 * model.kv_heads) * model.head_dim
    return {
        "qkv": (heads, model.hidden_size),
        "output": (model.hidden_size, model.heads * model.head_dim),
        "gate_up": (2 * model.intermediate_size, model.hidden_size),
        "down": (model.hidden_size, model.intermediate_size),
    }


class PanelTrial:
    """Aerie's own products with several matrices, one after the other, in one call as in a step."""

    def __init__(self, weights: Sequence[Tensor | Rounded], multiplier: Multiplier = Multiplier.FP32) -> None:
        pages = LargePages()
        self._panels = [_panels(weight, multiplier, pages) for weight in weights]
        self._matrices = (Matrix * len(weights))(*(panels.matrix(None) for panels in self._panels))
        self._inputs, self._outputs = (max(weight.shape[side] for weight in weights) for side in (1, 0))

    def prepare(self, tokens: int) -> Callable[[], None]:
        x, out = torch.rand(tokens, self._inputs), torch.empty(tokens, self._outputs)
        given = (out.data_ptr(), x.data_ptr(), self._matrices, len(self._matrices), tokens)

        def run(_: object = (x, out, self)) -> None:  # which live as long as their addresses are used
            library().multiplied_one_by_one(*given)

        return run


def _panels(weight: Tensor | Rounded, multiplier: Multiplier, pages: LargePages) -> Panels:
    if isinstance(weight, Rounded):
        return Panels(weight.integers, weight.scales, multiplier=multiplier, pages=pages)
    return Panels(weight.bfloat16(), multiplier=multiplier, pages=pages)


class TorchTrial:
    """The same by functions of torch, each with its matrix in a layout of its own."""

    def __init__(
        self,
        products: Sequence[Callable[[Tensor], Tensor]],
        weights: Sequence[Tensor | Rounded],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`dtype` is that of the inputs."""
        self._products = list(products)
        self._inputs = [weight.shape[1] for weight in weights]
        self._dtype = dtype

    def prepare(self, tokens: int) -> Callable[[], None]:
        xs = {inputs: torch.rand(tokens, inputs).to(self._dtype) for inputs in self._inputs}
        calls = [(product, xs[inputs]) for product, inputs in zip(self._products, self._inputs, strict=True)]

        def run() -> None:
            for product, x in calls:
                product(x)

        return run


Trial = PanelTrial | TorchTrial


def packed_trial(weights: Sequence[Tensor]) -> TorchTrial | None:
    """torch's packed form of `weights`; None if this torch or this CPU lacks it, or if a token's result depends on how
    many there are.
    """
    forms = [form for form in map(HalfPacked.of, weights) if form is not None]
    if len(forms) < len(weights) or not steady(forms[0], weights[0].shape[1]):
        return None
    return TorchTrial([partial(form, bias=None) for form in forms], weights)


def steady(form: Packed, inputs: int) -> bool:
    """Whether a token's result is equal to the last bit, whatever number of tokens it is computed with."""
    x = torch.rand(max(_COMPARED), inputs) - 0.5
    whole = form(x, None)
    return all(torch.equal(form(x[:count].contiguous(), None), whole[:count]) for count in _COMPARED)


def least_seconds(
    trials: Mapping[Way, Trial], counts: Sequence[int], *, seconds: float, clock: Callable[[], float]
) -> dict[Way, dict[int, float]]:
    """The least seconds of each way, by number of tokens. The ways alternate, so that whatever else the machine does
    strikes all of them, in two rounds at least; later ones begin before `seconds` have passed. A way's first run is not
    timed: the caches are full of what the way before it read.
    """
    runs = {way: {count: trial.prepare(count) for count in counts} for way, trial in trials.items()}
    least = {way: dict.fromkeys(counts, float("inf")) for way in trials}
    for _ in _rounds(clock() + seconds, clock):
        for way, by_count in runs.items():
            way.use()
            by_count[counts[0]]()
            for count, run in by_count.items():
                began = clock()
                run()
                least[way][count] = min(least[way][count], clock() - began)
    return least


def _rounds(end: float, clock: Callable[[], float]) -> Iterator[int]:
    for number in range(_MOST_ROUNDS):
        if number >= _LEAST_ROUNDS and clock() >= end:
            return
        yield number
