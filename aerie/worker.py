"""Builds the worker of a deployment: the kernels for its device, the worker of `spec` on them, and on a CPU the native
worker around it. Lanes call `build_worker` by name, in the process that runs the steps.
"""

from typing import TYPE_CHECKING

import torch

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.worker import Worker

if TYPE_CHECKING:
    from aerie.engine.bindings import Kernels
    from aerie.engine.step.plain_worker import PlainWorker
    from aerie.native.choice import Choice
    from aerie.native.worker import NativeWorker
    from aerie.spec.worker import SpecWorker


def build_worker(config: Config) -> "PlainWorker | SpecWorker | NativeWorker":
    """Raises ConfigError on a model, a head or kernels that cannot be served."""
    from aerie.native.worker import native_worker

    worker = build_launcher(config)
    native = native_worker(worker) if worker.state.kernels.language == "cpp" else None
    return worker if native is None else native


def build_launcher(config: Config) -> "PlainWorker | SpecWorker":
    """A worker that launches steps without waiting for them, as a GPU's lane needs. Raises ConfigError."""
    from aerie.engine.device import resolve_device
    from aerie.spec import build

    return build.build_worker(config, choose_kernels(config, resolve_device(config)))


def build_rank(config: Config, rank: int, ranks: int, port: int) -> Worker:
    """The worker of one of several tensor-parallel ranks, which meet at `port`."""
    from aerie.engine.sglang.place import Place, take

    take(Place(rank, ranks, port))
    return build_worker(config)


def choose_kernels(config: Config, device: torch.device) -> "Kernels":
    """The kernels that `engine.kernels` selects on `device`. Raises ConfigError."""
    from aerie.engine.bindings import REFERENCES
    from aerie.native.kernels.table import choose_cpp
    from aerie.spec.kernels.table import choose_triton

    setting, on_gpu = config.engine.kernels, device.type == "cuda"
    if setting == "torch":
        return REFERENCES
    if setting == "triton" and not on_gpu:
        raise _refused("triton, which needs a GPU, and this deployment runs on a CPU")
    if setting == "cpp" and on_gpu:
        raise _refused("cpp, whose kernels are a CPU's, and this deployment runs on a GPU")
    if config.engine.products in ("library", "inductor") and not on_gpu:
        raise ConfigError(
            f"engine.products is {config.engine.products}, which is a GPU's, and this deployment runs on a CPU; set "
            "engine.products=auto",
            param="engine.products",
        )
    if not on_gpu:
        return choose_cpp(setting, lambda: _products(config))
    return choose_triton(setting, device, products=config.engine.products)


def _products(config: Config) -> "Choice | None":
    """What multiplies by the target's matrices, on at most as many threads as the lane has; None if SGLang does. Raises
    ConfigError.
    """
    if config.engine.kind != "native":
        return None
    from aerie.engine.build import read_target
    from aerie.native.choice import choose, own_for, why_not
    from aerie.native.trials import shapes_of

    model, engine = read_target(config), config.engine
    if why := why_not(engine.products, config, model):
        raise ConfigError(
            f"engine.products is {engine.products}, and {why}; set engine.products=auto", param="engine.products"
        )
    return choose(
        list(shapes_of(model).values()),
        model.layers,
        threads=torch.get_num_threads(),
        pinned=engine.threads is not None,
        own=own_for(config, model),
        integers=config.model.quantization == "int8",
        product=None if engine.products == "auto" else engine.products,
    )


def _refused(why: str) -> ConfigError:
    return ConfigError(f"engine.kernels is {why}; set engine.kernels=auto", param="engine.kernels")
