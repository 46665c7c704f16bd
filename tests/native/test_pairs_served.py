"""Deployments whose products are of pairs of bf16: which may have them, that they are tried, and the same text."""

from pathlib import Path
from typing import Any

import pytest
import torch

from aerie.contracts.config import Config, parse_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.sampling import SamplingParams
from aerie.engine.build import read_target
from aerie.native import march
from aerie.native.choice import Choice, choose, own_for, why_not
from aerie.native.kernels.table import cpp_kernels
from aerie.native.products import Multiplier
from aerie.native.trials import AMX, DOTS, PANELS, Way
from aerie.native.worker import NativeWorker
from aerie.worker import build_worker, choose_kernels
from tests.native.cpp_here import needs_amx, needs_cpp, needs_dots, of_each
from tests.native.whole_steps import Pair, make_worker, write_pair
from tests.spec.test_worker import PROMPTS, SHAPES, run, sampling

pytestmark = needs_cpp


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("pair"))


def config_of(pair: tuple[Path, Path], products: str, *, head: bool = True, **model: Any) -> Config:
    return parse_config(
        {
            "model": {"path": str(pair[0]), "dtype": "bfloat16"} | model,
            "engine": {"kv_tokens": 4096, "page_size": 4, "kernels": "cpp", "products": products, "threads": 1},
            "scheduler": {"max_running": 8},
            "spec": {"head": str(pair[1]) if head else "none", "depth": 6, "topk": 4, "nodes": 32},
        }
    )


LACKING = [(DOTS, "avx512_bf16"), (DOTS, "everything"), (AMX, "amx_bf16"), (AMX, "amx_tile"), (AMX, "everything")]


@pytest.mark.parametrize(("product", "lacking"), LACKING)
def test_a_cpu_without_the_instruction_never_gets_them(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, product: str, lacking: str
) -> None:
    config, reported = config_of(pair, "auto"), tmp_path / "cpuinfo"
    if lacking != "everything":
        known = (march.cpu_features() or frozenset()) - {lacking}
        reported.write_text(f"processor : 0\nflags : {' '.join(sorted(known))}\n")
    monkeypatch.setattr(march, "_CPUINFO", reported)
    feature = {DOTS: "AVX512_BF16", AMX: "AMX_BF16"}[product]
    assert f"lacks {feature}" in str(why_not(product, config, read_target(config)))
    assert product not in own_for(config, read_target(config))
    assert choose_kernels(config, torch.device("cpu")).products == PANELS
    with pytest.raises(ConfigError, match=rf"engine.products is {product}, and this CPU, .* lacks {feature}; set eng"):
        choose_kernels(config_of(pair, product), torch.device("cpu"))


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_only_models_in_bf16_may_use_dot_products(pair: tuple[Path, Path], quantization: str) -> None:
    config = config_of(pair, DOTS, dtype="float32", quantization=quantization)
    with pytest.raises(ConfigError, match="dots, and this deployment does not compute in bfloat16"):
        choose_kernels(config, torch.device("cpu"))


@needs_amx
@pytest.mark.parametrize(("dtype", "multiplier"), [("bfloat16", Multiplier.AMX_BF16), ("float32", Multiplier.AMX)])
def test_amx_rounds_activations_of_models_in_bf16_alone(
    pair: tuple[Path, Path], dtype: str, multiplier: Multiplier
) -> None:
    for quantization in ("none", "int8"):
        config = config_of(pair, "auto", dtype=dtype, quantization=quantization)
        assert own_for(config, read_target(config))[AMX] is multiplier


@pytest.mark.parametrize(("product", "multiplier"), [(DOTS, Multiplier.DOTS), (AMX, Multiplier.AMX_BF16)])
def test_they_are_tried_where_they_may_serve(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, product: str, multiplier: Multiplier
) -> None:
    """What is much faster serves; where they gain little, products that round nothing do."""
    monkeypatch.setenv("AERIE_KERNELS", str(tmp_path))
    monkeypatch.setattr("aerie.native.choice.PanelTrial", lambda *_: object())
    times, own = {product: 0.5}, {PANELS: Multiplier.FP32, product: multiplier}
    monkeypatch.setattr(
        "aerie.native.choice.least_seconds",
        lambda ways, counts, **_: {way: dict.fromkeys(counts, times.get(way.product, 1.0)) for way in ways},
    )
    shapes = [(1024, 256), (256, 512)]
    assert choose(shapes, 4, threads=1, own=own).way.multiplier is multiplier
    assert choose(shapes, 4, threads=1, own=own).way.multiplier is multiplier, "as it was kept"
    assert choose(shapes, 4, threads=1).way.product == PANELS, "the choice before is not for this one"
    times[product] = 0.95
    assert choose(shapes, 5, threads=1, own=own).way.product == PANELS


@of_each
def test_a_worker_reports_what_multiplies(pair: tuple[Path, Path], product: str) -> None:
    """Its system fingerprint is made from that, too."""
    pairs, panels = (build_worker(config_of(pair, products)) for products in (product, PANELS))
    assert isinstance(pairs, NativeWorker) and pairs.capacity.report["products"] == product
    assert pairs.capacity.report["products_chosen"] == "set by the configuration"
    more = pairs.capacity.report["target_bytes"] / panels.capacity.report["target_bytes"]
    assert more == 1 if product == DOTS else 1 <= more < 2, "AMX has whole tiles of inputs"


@pytest.mark.parametrize(
    ("product", "model"),
    [
        pytest.param(DOTS, {}, marks=needs_dots),
        pytest.param(DOTS, {"quantization": "int8"}, marks=needs_dots),
        pytest.param(AMX, {}, marks=needs_amx),
        pytest.param(AMX, {"dtype": "float32"}, marks=needs_amx),
        pytest.param(AMX, {"quantization": "int8"}, marks=needs_amx),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_tokens_equal_those_of_plain_decoding(
    pair: tuple[Path, Path], product: str, model: dict[str, str], temperature: float
) -> None:
    params = [sampling(row, temperature) for row in range(4)]
    plain = run(build_worker(config_of(pair, product, head=False, **model)), params, drafting=[False] * 4)
    for shape in ("chain", "tree"):
        drafted = build_worker(config_of(pair, product, **model))
        for drafting, chunk in (([True] * 4, 256), ([True, False, True, True], 5)):
            rows = run(drafted, params, drafting=drafting, chunk=chunk, **SHAPES[shape])
            assert [row.out for row in rows] == [row.out for row in plain], shape


@of_each
@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_whole_steps_leave_what_single_kernels_do(
    pair: tuple[Path, Path], product: str, shape: str, quantization: str
) -> None:
    """With a head in bf16, whose products are such too, and in 8 bits."""
    multiplier = {DOTS: Multiplier.DOTS, AMX: Multiplier.AMX_BF16}[product]
    chosen = Choice(Way(product, 1, False, multiplier), "a test")
    both = Pair(lambda: make_worker(pair, "bfloat16", cpp_kernels(chosen), quantization=quantization))
    heats = (0.0, 0.9, 1.3)
    params = [SamplingParams(temperature=heat, seed=row, max_tokens=16) for row, heat in enumerate(heats)]
    rows = both.each(
        lambda rounds: [rounds.add(i, list(PROMPTS[i]), own, drafting=True) for i, own in enumerate(params)]
    )
    while places := [place for place, row in enumerate(rows[0]) if not row.done]:
        both.decode([[own[place] for place in places] for own in rows], **SHAPES[shape])
    assert all(len(row.out) == 16 for own in rows for row in own)
