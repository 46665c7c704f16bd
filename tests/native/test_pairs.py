"""Products of pairs of bf16, by dot products and by AMX: what they round, what they do not depend on, and never without
the instructions.
"""

import re
import subprocess
from collections.abc import Iterator
from shutil import which

import pytest
import torch
from torch import Tensor

from aerie.engine.model.matrix import rounded
from aerie.native.library import library
from aerie.native.products import Multiplier, Panels, pack, pack_amx, pack_dots, pack_int8_for
from aerie.native.trials import AMX, DOTS
from tests.native.cpp_here import needs_amx, needs_cpp, needs_dots, of_each

pytestmark = needs_cpp
PACKS = {DOTS: pack_dots, AMX: pack_amx}
MATRICES = [(256, 64), (100, 72), (70, 51), (3, 7), (40, 2100), (33, 4099)]
"""[out, in]: whole panels and parts, even and odd inputs, one block of inputs and several."""


@pytest.fixture(autouse=True)
def alone_again() -> Iterator[None]:
    yield
    library().use_threads(1)
    library().read_far_ahead(False)


def pairs_of(product: str, out: int, wide: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Panels]:
    weight = torch.randn(out, wide).bfloat16().to(dtype)
    packed = PACKS[product](weight)
    assert isinstance(packed, Panels)
    expected = {DOTS: Multiplier.DOTS, AMX: Multiplier.AMX_BF16 if dtype is torch.bfloat16 else Multiplier.AMX}
    assert packed.matrix(None).multiplier == expected[product]
    return weight, packed


def within(found: Tensor, x: Tensor, weight: Tensor, added: Tensor, parts: int = 1) -> bool:
    """Whether `found` is x W^T + `added` but for fp32 sums. A product of bf16 numbers is an fp32 number, so only sums
    are rounded, each by half a unit in its last place, and no sum is larger than that of all terms' sizes. Each input
    has so many `parts`.
    """
    exact = x.double() @ weight.double().t() + added.double()
    sizes = x.double().abs() @ weight.double().abs().t() + added.double().abs()
    return bool(((found.double() - exact).abs() <= (parts * x.shape[1] + 2) * 2.0**-24 * sizes).all())


@of_each
@pytest.mark.parametrize(("out", "wide"), MATRICES)
@pytest.mark.parametrize("tokens", [1, 3, 16, 40])
def test_they_are_the_products_of_rounded_activations(product: str, tokens: int, out: int, wide: int) -> None:
    (weight, packed), x = pairs_of(product, out, wide), torch.randn(tokens, wide)
    bias, residual, rounded = torch.randn(out), torch.randn(tokens, out), x.bfloat16()
    assert torch.equal(packed.weight, weight.float())
    assert within(packed(x, None), rounded, weight, torch.zeros(1))
    assert within(packed(x, bias), rounded, weight, bias)
    assert within(packed.add_to(residual.clone(), x, bias), rounded, weight, bias + residual)


@needs_amx
@pytest.mark.parametrize(("out", "wide"), MATRICES)
@pytest.mark.parametrize("tokens", [1, 3, 16, 40, 300])
def test_amx_rounds_no_activation_of_a_model_in_fp32(tokens: int, out: int, wide: int) -> None:
    """Three numbers of bf16 have all of its 24 bits."""
    (weight, packed), x = pairs_of(AMX, out, wide, torch.float32), torch.randn(tokens, wide)
    bias, residual = torch.randn(out), torch.randn(tokens, out)
    assert torch.equal(packed.weight, weight)
    assert within(packed(x, None), x, weight, torch.zeros(1), parts=3)
    assert within(packed.add_to(residual.clone(), x, bias), x, weight, bias + residual, parts=3)
    ones = PACKS[AMX](torch.ones(1, 1))
    numbers = torch.cat([x.flatten()[:500] * 1e9, torch.tensor([0.0, torch.inf, -torch.inf])])[:, None]
    assert ones is not None and torch.equal(ones(numbers, None), numbers)


@of_each
def test_the_limit_tells_what_is_rounded_and_which_weights_meet_which_inputs(product: str) -> None:
    (weight, packed), x = pairs_of(product, 64, 256), torch.randn(8, 256)
    found = packed(x, None)
    assert not within(found, x, weight, torch.zeros(1)), "activations are rounded"
    swapped = weight.clone()
    swapped[:, [0, 1]] = weight[:, [1, 0]]
    assert not within(found, x.bfloat16(), swapped, torch.zeros(1))


@of_each
def test_numbers_of_bf16_are_rounded_to_nearest_and_ties_to_even(product: str) -> None:
    """By a weight of one, so that a product is the rounded activation."""
    numbers = torch.cat(
        [torch.randn(4000) * 10.0 ** torch.randint(-20, 20, (4000,)), torch.tensor([0.0, -0.0, torch.inf])]
    )
    ties = (torch.randint(0x0100, 0x7F00, (500,), dtype=torch.int32) << 16 | 0x8000).view(torch.float32)
    x = torch.cat([numbers, ties])[:, None]
    packed = PACKS[product](torch.ones(1, 1).bfloat16())
    assert packed is not None and torch.equal(packed(x, None), x.bfloat16().float())
    assert packed(torch.tensor([[torch.nan]]), None).isnan().all()


@pytest.mark.parametrize(
    ("product", "dtype"),
    [
        pytest.param(DOTS, torch.bfloat16, marks=needs_dots),
        pytest.param(AMX, torch.bfloat16, marks=needs_amx),
        pytest.param(AMX, torch.float32, marks=needs_amx),
    ],
)
@pytest.mark.parametrize(("out", "wide"), MATRICES)
def test_a_row_does_not_depend_on_others_tiles_or_threads(
    product: str, dtype: torch.dtype, out: int, wide: int
) -> None:
    (_, packed), x = pairs_of(product, out, wide, dtype), torch.randn(70, wide)
    residual = torch.randn(70, out)
    whole, added = packed(x, None), packed.add_to(residual.clone(), x, None)
    assert all(torch.equal(packed(x[row : row + 1], None)[0], whole[row]) for row in range(70))
    for tokens in (2, 5, 14, 15, 33):
        assert torch.equal(packed(x[:tokens], None), whole[:tokens])
    library().read_far_ahead(True)
    for tokens in range(1, 71):
        assert torch.equal(packed(x[:tokens], None), whole[:tokens])
    for threads in (2, 3):
        library().use_threads(threads)
        for _ in range(3):
            assert torch.equal(packed(x, None), whole)
            assert torch.equal(packed.add_to(residual.clone(), x, None), added)


@needs_amx
@pytest.mark.parametrize("threads", [1, 2])
def test_torch_keeps_its_tiles(threads: int) -> None:
    """oneDNN sets the shapes of a thread's tiles once, and crashes if they are others later."""
    (_, packed), x = pairs_of(AMX, 512, 256), torch.randn(40, 256)
    library().use_threads(threads)
    weight, inputs = torch.randn(256, 512).bfloat16(), torch.randn(64, 256).bfloat16()
    expected, before = packed(x, None), inputs.mm(weight)
    for _ in range(5):
        assert torch.equal(inputs.mm(weight), before) and torch.equal(packed(x, None), expected)
        assert torch.equal(packed(x[:3].contiguous(), None), expected[:3])


@pytest.mark.parametrize(
    ("multiplier", "parts"),
    [
        pytest.param(Multiplier.DOTS, 1, marks=needs_dots),
        pytest.param(Multiplier.AMX, 3, marks=needs_amx),
        pytest.param(Multiplier.AMX_BF16, 1, marks=needs_amx),
    ],
)
@pytest.mark.parametrize(("out", "wide"), MATRICES)
def test_integers_are_widened(out: int, wide: int, multiplier: Multiplier, parts: int) -> None:
    """For few rows in each tile, for many once for all of them."""
    matrix, x = rounded(torch.randn(out, wide)), torch.randn(70, wide)
    packed = pack_int8_for(multiplier)(matrix)
    assert isinstance(packed, Panels) and packed.matrix(None).multiplier == multiplier
    assert torch.equal(packed.weight, matrix.weight)
    inputs, bias = x if parts == 3 else x.bfloat16(), torch.randn(out)
    sums = (inputs.double() @ matrix.integers.double().t()) * matrix.scales + bias.double()
    sizes = (inputs.double().abs() @ matrix.integers.double().abs().t()) * matrix.scales + bias.double().abs()
    found = packed(x, bias)
    assert ((found.double() - sums).abs() <= (parts * wide + 3) * 2.0**-24 * sizes).all()
    assert all(torch.equal(packed(x[row : row + 1], bias)[0], found[row]) for row in range(70))
    assert all(torch.equal(packed(x[:tokens], bias), found[:tokens]) for tokens in (2, 5, 15, 33, 57))
    for threads in (2, 3):
        library().use_threads(threads)
        assert torch.equal(packed(x, bias), found)


@needs_amx
@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e-37, 1e30])
def test_few_rows_by_vectors_are_those_of_tiles(size: float, integers: bool) -> None:
    """Also where numbers are so small that AMX takes them for zeros."""
    for out, wide in [*MATRICES, (160, 320)]:
        weight, x = torch.randn(out, wide), torch.randn(40, wide) * size
        found = pack_int8_for(Multiplier.AMX_BF16)(rounded(weight)) if integers else pack_amx(weight.bfloat16())
        assert isinstance(found, Panels)
        packed, residual = found, torch.randn(40, out) * size
        tiled, added = packed(x, None), packed.add_to(residual.clone(), x, None)
        for count in (1, 2, 3, 4):
            for first in range(0, 41 - count, count):
                rows = slice(first, first + count)
                assert torch.equal(packed(x[rows], None), tiled[rows])
                assert torch.equal(packed.add_to(residual[rows].clone(), x[rows], None), added[rows])


@of_each
def test_they_take_no_more_memory_than_panels(product: str) -> None:
    weight = torch.randn(96, 64).bfloat16()
    pairs, panels = PACKS[product](weight), pack(weight)
    assert pairs is not None and panels is not None and pairs.bytes == panels.bytes == 2 * 96 * 64


def test_dot_products_are_never_of_weights_of_fp32() -> None:
    weight, x = torch.randn(40, 24).bfloat16().float(), torch.randn(5, 24)
    packed, panels = pack_dots(weight), pack(weight)
    assert isinstance(packed, Panels) and panels is not None
    assert packed.matrix(None).multiplier == Multiplier.FP32
    assert torch.equal(packed(x, None), panels(x, None))


@needs_dots
@pytest.mark.skipif(which("objdump") is None, reason="no objdump")
def test_the_instructions_are_in_functions_of_their_own() -> None:
    """So that the rest of the library runs on CPUs that lack them."""
    listed = subprocess.run(["objdump", "-d", library()._name], capture_output=True, text=True, check=True).stdout
    functions = [part.partition(">:") for part in re.split(r"(?m)^[0-9a-f]+ <", listed)]
    dots = {name for name, _, code in functions if "vdpbf16ps" in code}
    assert dots and all("Pair" in name or name == "dot_products" for name in dots)
    tiles = {name for name, _, code in functions if re.search("tmm[0-7]|tilecfg", code)}
    assert tiles and all("amx" in name for name in tiles), tiles
