"""Builds a loaded target, its pool and the scheduler's capacity from a config."""

from pathlib import Path

import torch

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.labels import labels
from aerie.contracts.step import Capacity
from aerie.engine.attention import make_attention
from aerie.engine.attention.inputs import AttentionShape
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.cuda import Cuda, Runtime
from aerie.engine.device import device_name
from aerie.engine.grammars.guides import Guides
from aerie.engine.grammars.matcher import Vocabulary
from aerie.engine.lanes.cores import usable_cores
from aerie.engine.memory import Sizes, plan_sizes
from aerie.engine.model.config import ModelConfig, read_json, read_model_config
from aerie.engine.model.decoder import Decoder
from aerie.engine.model.dummy_weights import DummyWeights
from aerie.engine.model.formats import reader_of
from aerie.engine.model.packing import pack_int8
from aerie.engine.model.projection import Precision
from aerie.engine.model.target import LoadedTarget, RankedTarget
from aerie.engine.model.weights import Source, Weights
from aerie.engine.state.edit_tables import edit_bytes
from aerie.engine.state.kv_pool import KVPool
from aerie.engine.step.graphs import capturable, recording
from aerie.engine.step.plain_graphs import PlainGraphs
from aerie.engine.step.plain_worker import PlainWorker
from aerie.engine.step.state import make_state

_MASK_THREADS = 8
"""The most that make masks beside a GPU."""


def read_target(config: Config) -> ModelConfig:
    """The target's shape. Raises ConfigError for a model that the configured engine cannot run."""
    if config.engine.kind == "sglang-model":
        from aerie.engine.sglang.build import read_sglang_shape

        return read_sglang_shape(config)
    return read_model_config(Path(config.model.path))


def load_target(
    config: Config,
    model: ModelConfig,
    sizes: Sizes,
    boundaries: tuple[int, ...] = (),
    kernels: Kernels = REFERENCES,
) -> LoadedTarget:
    """The target with its pool, on the device that `sizes` names."""
    if config.engine.kind == "sglang-model":
        from aerie.engine.sglang.build import load_sglang_target

        return load_sglang_target(config, model, sizes, boundaries, kernels)
    return _native(config, model, sizes, boundaries, kernels)


def _native(config: Config, model: ModelConfig, sizes: Sizes, boundaries: tuple[int, ...], kernels: Kernels) -> Decoder:
    precision = _precision(config, sizes.device)
    pool = KVPool(
        layers=model.layers,
        pages=sizes.pages,
        page_size=sizes.page_size,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        dtype=sizes.dtype,
        device=sizes.device,
    )
    weights: Source
    if config.model.weights == "dummy":
        weights = DummyWeights(sizes.dtype, sizes.device)
    else:
        folder = Path(config.model.path)
        reader = reader_of(read_json(folder / "config.json"), folder)
        weights = Weights(folder, sizes.dtype, sizes.device, reader=reader)
    positions = sizes.max_length + sizes.reserve + 1
    shape = AttentionShape(model.heads, model.kv_heads, model.head_dim, sizes.page_size, sizes.dtype, sizes.device)
    attention = make_attention(config.engine.attention, shape, kernels)
    return Decoder(
        model,
        weights,
        pool,
        attention,
        positions=positions,
        boundaries=boundaries,
        device=sizes.device,
        kernels=kernels,
        precision=precision,
    )


def _precision(config: Config, device: torch.device) -> Precision:
    """Of the target's matrices. Raises ConfigError if it does not run on the device."""
    if config.model.quantization == "none":
        return Precision.STORED
    if device.type != "cpu":
        raise ConfigError(
            f"model.quantization is int8, which CPUs run, and this deployment runs on {device_name(device)}; set "
            "model.quantization=none or engine.device=cpu",
            param="model.quantization",
        )
    return Precision.INT8


def multiplies_int8(dtype: torch.dtype, kernels: Kernels) -> bool:
    """Whether these kernels multiply by matrices rounded to 8 bits."""
    if kernels[pack_int8] is pack_int8:
        return False
    return dtype in (torch.bfloat16, torch.float32 if kernels.language == "cpp" else torch.float16)


def make_capacity(
    config: Config,
    target: LoadedTarget,
    sizes: Sizes,
    *,
    kernels: Kernels = REFERENCES,
    drafts: bool = False,
    tail: int = 0,
    extra: dict[str, str | int | float | bool | None] | None = None,
) -> Capacity:
    model = target.config
    report: dict[str, str | int | float | bool | None] = {
        "architecture": model.architecture,
        "device": device_name(sizes.device),
        "dtype": str(sizes.dtype).removeprefix("torch."),
        "quantization": config.model.quantization,
        "attention": str(getattr(getattr(target, "attention", None), "name", "the model's own")),
        "kernels": kernels.report,
        "kernel_set": kernels.name,
        "products": str(kernels.products),
        "products_chosen": kernels.chosen,
        "threads": torch.get_num_threads(),
        "target_bytes": target.bytes,
        "kv_bytes": target.pool.bytes,
        "kv_tokens": (sizes.pages - 1) * sizes.page_size,
        "max_length": sizes.max_length,
        "edit_slots": sizes.edit_slots,
        "edit_bytes": edit_bytes(sizes.edit_slots, model.vocabulary),
        **(extra or {}),
        **labels(config),
    }
    return Capacity(
        rows=sizes.rows,
        pages=sizes.pages,
        page_size=sizes.page_size,
        max_length=sizes.max_length,
        vocabulary=model.vocabulary,
        end_ids=model.end_ids,
        drafts=drafts,
        reserve=sizes.reserve,
        edit_slots=sizes.edit_slots,
        tail=tail,
        grammars=_takes_grammars(config, target),
        report=report,
    )


def _takes_grammars(config: Config, target: LoadedTarget) -> bool:
    """Choices are held to grammars where one rank makes them, and where acceptance is the target's."""
    return (
        (not isinstance(target, RankedTarget) or target.ranks == 1)
        and config.spec.simulate_acceptance is None
        and (Path(config.model.path) / "tokenizer.json").is_file()
    )


def make_guides(config: Config, capacity: Capacity) -> Guides | None:
    if not capacity.grammars:
        return None
    folder = Path(config.model.path)
    return Guides(lambda: Vocabulary.of_model(folder, capacity.vocabulary, capacity.end_ids))


def mask_threads() -> int:
    """Of a GPU's host: the scheduler has a core too."""
    return max(1, min(_MASK_THREADS, int(usable_cores()) - 1))


def build_plain_worker(config: Config, kernels: Kernels = REFERENCES) -> PlainWorker:
    """A worker without a draft head."""
    model = read_target(config)
    sizes = plan_sizes(config, model, kernels=kernels)
    target = load_target(config, model, sizes, kernels=kernels)
    capacity = make_capacity(config, target, sizes, kernels=kernels)
    state = make_state(
        target,
        capacity,
        guides=make_guides(config, capacity),
        mask_threads=mask_threads(),
        poison=config.scheduler.poison,
        kernels=kernels,
        runtime=runtime_of(sizes.device),
    )
    attention = capturable(state, config.engine.graphs)
    if attention is None:
        return PlainWorker(state)
    with recording(state) as graphs:
        recorded = PlainGraphs(state, graphs, attention)
    return PlainWorker(state, recorded)


def runtime_of(device: torch.device) -> Runtime | None:
    """The device's runtime; None if the device is the host."""
    return Cuda(device) if device.type == "cuda" else None
