"""Products by dot products of bf16: what they round, what they do not depend on, and never without the instruction."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import torch
from torch import Tensor

from aerie.contracts.config import Config, parse_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.sampling import SamplingParams
from aerie.engine.build import read_target
from aerie.native import march
from aerie.native.choice import Choice, choose, no_dots
from aerie.native.kernels.table import cpp_kernels
from aerie.native.library import library
from aerie.native.products import Panels, dots_here, pack, pack_dots
from aerie.native.trials import DOTS, PANELS, Way
from aerie.native.worker import NativeWorker
from aerie.worker import build_worker, choose_kernels
from tests.native.cpp_here import needs_cpp, needs_dots
from tests.native.whole_steps import Pair, make_worker, write_pair
from tests.spec.test_worker import PROMPTS, SHAPES, run, sampling

pytestmark = needs_cpp
MATRICES = [(256, 64), (100, 72), (70, 51), (3, 7), (40, 2100), (33, 4099)]
"""[out, in]: whole panels and parts, even and odd inputs, one block of inputs and several."""


@pytest.fixture(autouse=True)
def alone_again() -> Iterator[None]:
    yield
    library().use_threads(1)
    library().use_tile_rows(library().most_tile_rows())


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("pair"))


def config_of(pair: tuple[Path, Path], *, products: str = DOTS, head: bool = True, **model: Any) -> Config:
    return parse_config(
        {
            "model": {"path": str(pair[0]), "dtype": "bfloat16"} | model,
            "engine": {"kv_tokens": 4096, "page_size": 4, "kernels": "cpp", "products": products, "threads": 1},
            "scheduler": {"max_running": 8},
            "spec": {"head": str(pair[1]) if head else "none", "depth": 6, "topk": 4, "nodes": 32},
        }
    )


def dots_of(out: int, wide: int) -> tuple[Tensor, Panels]:
    weight = torch.randn(out, wide).bfloat16()
    packed = pack_dots(weight)
    assert isinstance(packed, Panels) and packed.matrix(None).dots
    return weight, packed


def within(found: Tensor, x: Tensor, weight: Tensor, added: Tensor) -> bool:
    """Whether `found` is x W^T + `added` but for fp32 sums. A product of bf16 numbers is an fp32 number, so only sums
    are rounded, each by half a unit in its last place, and no sum is larger than that of all terms' sizes.
    """
    exact = x.double() @ weight.double().t() + added.double()
    sizes = x.double().abs() @ weight.double().abs().t() + added.double().abs()
    return bool(((found.double() - exact).abs() <= (x.shape[1] + 2) * 2.0**-24 * sizes).all())


@needs_dots
@pytest.mark.parametrize(("out", "wide"), MATRICES)
@pytest.mark.parametrize("tokens", [1, 3, 16, 40])
def test_they_are_the_products_of_rounded_activations(tokens: int, out: int, wide: int) -> None:
    (weight, packed), x = dots_of(out, wide), torch.randn(tokens, wide)
    bias, residual, rounded = torch.randn(out), torch.randn(tokens, out), x.bfloat16()
    assert torch.equal(packed.weight, weight.float())
    assert within(packed(x, None), rounded, weight, torch.zeros(1))
    assert within(packed(x, bias), rounded, weight, bias)
    assert within(packed.add_to(residual.clone(), x, bias), rounded, weight, bias + residual)


@needs_dots
def test_the_limit_tells_what_is_rounded_and_which_weights_meet_which_inputs() -> None:
    (weight, packed), x = dots_of(64, 256), torch.randn(8, 256)
    found = packed(x, None)
    assert not within(found, x, weight, torch.zeros(1)), "activations are rounded"
    swapped = weight.clone()
    swapped[:, [0, 1]] = weight[:, [1, 0]]
    assert not within(found, x.bfloat16(), swapped, torch.zeros(1))


@needs_dots
def test_numbers_of_bf16_are_rounded_to_nearest_and_ties_to_even() -> None:
    """By a weight of one, so that a product is the rounded activation."""
    numbers = torch.cat(
        [torch.randn(4000) * 10.0 ** torch.randint(-20, 20, (4000,)), torch.tensor([0.0, -0.0, torch.inf])]
    )
    ties = (torch.randint(0x0100, 0x7F00, (500,), dtype=torch.int32) << 16 | 0x8000).view(torch.float32)
    x = torch.cat([numbers, ties])[:, None]
    packed = pack_dots(torch.ones(1, 1).bfloat16())
    assert packed is not None and torch.equal(packed(x, None), x.bfloat16().float())
    assert packed(torch.tensor([[torch.nan]]), None).isnan().all()


@needs_dots
@pytest.mark.parametrize(("out", "wide"), MATRICES)
def test_a_row_does_not_depend_on_others_tiles_or_threads(out: int, wide: int) -> None:
    (_, packed), x = dots_of(out, wide), torch.randn(70, wide)
    residual = torch.randn(70, out)
    whole, added = packed(x, None), packed.add_to(residual.clone(), x, None)
    assert all(torch.equal(packed(x[row : row + 1], None)[0], whole[row]) for row in range(70))
    for tokens in (2, 5, 14, 15, 33):
        assert torch.equal(packed(x[:tokens], None), whole[:tokens])
    for rows in range(1, library().most_tile_rows() + 1):
        library().use_tile_rows(rows)
        assert torch.equal(packed(x, None), whole)
    for threads in (2, 3):
        library().use_threads(threads)
        for _ in range(3):
            assert torch.equal(packed(x, None), whole)
            assert torch.equal(packed.add_to(residual.clone(), x, None), added)


@needs_dots
def test_they_take_no_more_memory_than_panels() -> None:
    weight = torch.randn(96, 64).bfloat16()
    dots, panels = pack_dots(weight), pack(weight)
    assert dots is not None and panels is not None and dots.bytes == panels.bytes == 2 * 96 * 64


def test_weights_of_fp32_are_never_multiplied_so() -> None:
    weight, x = torch.randn(40, 24).bfloat16().float(), torch.randn(5, 24)
    packed, panels = pack_dots(weight), pack(weight)
    assert isinstance(packed, Panels) and panels is not None and not packed.matrix(None).dots
    assert torch.equal(packed(x, None), panels(x, None))


@needs_dots
@pytest.mark.skipif(which("objdump") is None, reason="no objdump")
def test_the_instruction_is_in_functions_of_its_own() -> None:
    """So that the rest of the library runs on CPUs that lack it."""
    listed = subprocess.run(["objdump", "-d", library()._name], capture_output=True, text=True, check=True).stdout
    functions = [part.partition(">:") for part in re.split(r"(?m)^[0-9a-f]+ <", listed)]
    found = {name for name, _, code in functions if "vdpbf16ps" in code}
    assert found and all("4Pair" in name or name == "dot_products" for name in found)


@pytest.mark.parametrize("lacking", ["avx512_bf16", "everything"])
def test_a_cpu_without_the_instruction_never_gets_them(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    config, reported = config_of(pair, products="auto"), tmp_path / "cpuinfo"
    if lacking != "everything":
        known = (march.cpu_features() or frozenset()) - {lacking}
        reported.write_text(f"processor : 0\nflags : {' '.join(sorted(known))}\n")
    monkeypatch.setattr(march, "_CPUINFO", reported)
    assert not dots_here() and "lacks AVX512_BF16" in str(no_dots(config, read_target(config)))
    assert choose_kernels(config, torch.device("cpu")).products == PANELS
    with pytest.raises(ConfigError, match=r"engine.products is dots, and this CPU, .* lacks AVX512_BF16; set eng"):
        choose_kernels(config_of(pair), torch.device("cpu"))


@pytest.mark.parametrize("model", [{"dtype": "float32"}, {"quantization": "int8"}])
def test_only_models_in_bf16_may_use_them(pair: tuple[Path, Path], model: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="dots, and the weights of this deployment are not served in bfloat16"):
        choose_kernels(config_of(pair, **model), torch.device("cpu"))


def test_they_are_tried_where_they_may_serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is much faster serves; where they gain little, products that round nothing do."""
    monkeypatch.setenv("AERIE_KERNELS", str(tmp_path))
    times = {DOTS: 0.5}
    monkeypatch.setattr(
        "aerie.native.choice.least_seconds",
        lambda ways, counts, **_: {way: dict.fromkeys(counts, times.get(way.product, 1.0)) for way in ways},
    )
    shapes = [(1024, 256), (256, 512)]
    assert choose(shapes, 4, threads=1, dots=True).way.product == DOTS
    assert choose(shapes, 4, threads=1, dots=False).way.product == PANELS, "the choice before is not for this one"
    times[DOTS] = 0.95
    assert choose(shapes, 5, threads=1, dots=True).way.product == PANELS


@needs_dots
def test_a_worker_reports_what_multiplies(pair: tuple[Path, Path]) -> None:
    """Its system fingerprint is made from that, too."""
    dots, panels = (build_worker(config_of(pair, products=product)) for product in (DOTS, PANELS))
    assert isinstance(dots, NativeWorker) and dots.capacity.report["products"] == DOTS
    assert dots.capacity.report["products_chosen"] == "set by the configuration"
    assert dots.capacity.report["target_bytes"] == panels.capacity.report["target_bytes"]


@needs_dots
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_tokens_equal_those_of_plain_decoding(pair: tuple[Path, Path], temperature: float) -> None:
    params = [sampling(row, temperature) for row in range(4)]
    plain = run(build_worker(config_of(pair, head=False)), params, drafting=[False] * 4)
    for shape in ("chain", "tree"):
        drafted = build_worker(config_of(pair))
        for drafting, chunk in (([True] * 4, 256), ([True, False, True, True], 5)):
            rows = run(drafted, params, drafting=drafting, chunk=chunk, **SHAPES[shape])
            assert [row.out for row in rows] == [row.out for row in plain], shape


@needs_dots
@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_whole_steps_leave_what_single_kernels_do(pair: tuple[Path, Path], shape: str, quantization: str) -> None:
    """With a head in bf16, whose products are dots too, and in 8 bits."""
    chosen = Choice(Way(DOTS, 1, 9), "a test")
    both = Pair(lambda: make_worker(pair, "bfloat16", cpp_kernels(chosen), quantization=quantization))
    heats = (0.0, 0.9, 1.3)
    params = [SamplingParams(temperature=heat, seed=row, max_tokens=16) for row, heat in enumerate(heats)]
    rows = both.each(
        lambda rounds: [rounds.add(i, list(PROMPTS[i]), own, drafting=True) for i, own in enumerate(params)]
    )
    while places := [place for place, row in enumerate(rows[0]) if not row.done]:
        both.decode([[own[place] for place in places] for own in rows], **SHAPES[shape])
    assert all(len(row.out) == 16 for own in rows for row in own)
