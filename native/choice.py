"""Chooses, while a model is loaded, what multiplies by its weights on this machine and on how many threads: what was
fastest there, in trials of less than a second, whose outcome is kept for later starts.

One way serves all of a model's matrices and all numbers of tokens, so that a token's logits do not depend on what is
beside it. The composition root asks once; a process keeps to its choice.
"""

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from aerie.contracts.config import Config
from aerie.engine.device import resolve_dtype
from aerie.engine.kernels.folder import folder, folders
from aerie.engine.model.config import ModelConfig
from aerie.engine.model.matrix import rounded
from aerie.native.library import library_name
from aerie.native.march import cpu_name
from aerie.native.products import Multiplier
from aerie.native.trials import (
    AMX,
    DOTS,
    FP16,
    PANELS,
    PanelTrial,
    Shape,
    Trial,
    Way,
    least_seconds,
    own_products,
    packed_trial,
    reaches,
)

logger = logging.getLogger("aerie.kernels")

COUNTS = (1, 4, 16, 64)
"""Tokens of a trial: one request, a draft, several requests, and prompts."""
_SECONDS = 0.4
_WEIGHTS = 1 << 24
"""The most weights of a trial: in 16 bits more than a core's caches hold, as those of a large model are."""
SMALL = 1 << 20
"""A model of fewer weights is not worth a trial."""
_NEAR = 1.1
"""Ways this close to the best are as good, as far as short trials tell; the first of them serves."""
_PREFERENCE = 1.25
"""How much faster torch's product must be. Around Aerie's own a step is one call; around torch's it is hundreds."""

_SET = "set by the configuration"

_PANELS = {PANELS: Multiplier.FP32}


@dataclass(frozen=True, slots=True)
class Choice:
    way: Way
    why: str
    """For users."""


def served_in_bf16(config: Config, model: ModelConfig) -> bool:
    """Whether a deployment on a CPU computes in bf16 with Aerie's own products, so that these may round activations to
    bf16, too.
    """
    return resolve_dtype(config, model.dtype, torch.device("cpu"), widens=True) is torch.bfloat16


def own_for(config: Config, model: ModelConfig) -> dict[str, Multiplier]:
    """Aerie's own products that a deployment on a CPU can use, the most preferred first."""
    return own_products(rounds=served_in_bf16(config, model))


def why_not(product: str, config: Config, model: ModelConfig) -> str | None:
    """Why a deployment on a CPU cannot use `product`, if it is one of Aerie's own; None if it can."""
    if product not in (DOTS, AMX) or product in own_for(config, model):
        return None
    if product == DOTS and not served_in_bf16(config, model):
        return "this deployment does not compute in bfloat16"
    lacks = "AVX512_BF16" if product == DOTS else "AMX_BF16"
    return f"this CPU, its system, or the level that the kernels are compiled for, lacks {lacks}"


def choose(
    shapes: Sequence[Shape],
    layers: int,
    *,
    threads: int,
    pinned: bool = False,
    own: Mapping[str, Multiplier] = _PANELS,
    integers: bool = False,
    product: str | None = None,
    clock: Callable[[], float] | None = None,
) -> Choice:
    """The way for a model with `layers` layers of matrices [out, in], on `threads` threads if `pinned`, else on at most
    so many. `own` are those of Aerie's own products that may serve, `product` pins the product; how far ahead it reads
    is measured even so. With `integers` weights have 8 bits. By default the clock is CPU time if all ways have one
    thread: what else runs on this machine must not decide.
    """
    ways = _ways(threads, pinned=pinned, own=own, product=product)
    is_set = len({(way.product, way.threads) for way in ways}) == 1
    small = layers * sum(out * inputs for out, inputs in shapes) < SMALL
    if small or len(ways) == 1:
        return Choice(ways[0], _SET if is_set else "not measured: the model is small")
    key = _key(shapes, layers, ways, integers)
    kept = _kept(key, ways)
    if kept is not None:
        return kept
    if clock is None:
        clock = time.thread_time if all(way.threads == 1 for way in ways) else time.perf_counter
    choice = _best(_trials(ways, trial_weights(shapes, layers), integers=integers), clock)
    if is_set:
        choice = replace(choice, why=f"{_SET}; how far ahead it reads is {choice.why}")
    _keep(key, choice)
    return choice


def _ways(threads: int, *, pinned: bool, own: Mapping[str, Multiplier], product: str | None) -> list[Way]:
    """The most preferred first."""
    numbers = [threads] if pinned else sorted({min(2**power, threads) for power in range(threads.bit_length() + 1)})
    ours = [
        Way(name, number, far, multiplier)
        for number in numbers
        for name, multiplier in own.items()
        for far in reaches(name)
    ]
    theirs = [Way(FP16, numbers[0])]  # which runs on one thread
    return [way for way in [*ours, *theirs] if product in (None, way.product)]


def _trials(ways: Sequence[Way], weights: Sequence[Tensor], *, integers: bool) -> dict[Way, Trial]:
    stored = [rounded(weight) for weight in weights] if integers else weights
    own = {multiplier: PanelTrial(stored, multiplier) for multiplier in {way.multiplier for way in ways if way.ours}}
    torchs = packed_trial(weights) if any(not way.ours for way in ways) else None
    trials = {way: own[way.multiplier] if way.ours else torchs for way in ways}
    return {way: trial for way, trial in trials.items() if trial is not None}


def trial_weights(shapes: Sequence[Shape], layers: int) -> list[Tensor]:
    """bf16 numbers of these shapes: of as many layers as the trial holds, or of a part of one layer's outputs."""
    layer = sum(out * inputs for out, inputs in shapes)
    share = min(1.0, _WEIGHTS / layer)
    numbers = torch.rand(max(inputs for _, inputs in shapes)).bfloat16().float()
    return [
        numbers[:inputs].expand(max(1, round(out * share)), inputs).contiguous()
        for _ in range(max(1, min(layers, _WEIGHTS // layer)))
        for out, inputs in shapes
    ]


def _best(trials: Mapping[Way, Trial], clock: Callable[[], float]) -> Choice:
    began = clock()
    least = least_seconds(trials, COUNTS, seconds=_SECONDS, clock=clock)
    best = {count: min(times[count] for times in least.values()) for count in COUNTS}
    worst = {way: max(times[count] / best[count] for count in COUNTS) for way, times in least.items()}
    weighed = {way: score * (_PREFERENCE if way.product == FP16 else 1) for way, score in worst.items()}
    first = next(way for way, score in weighed.items() if score <= _NEAR * min(weighed.values()))
    way = min(_alike(first, least), key=lambda way: math.prod(least[way].values()))
    found = ", ".join(f"{_named(each)} {1 / worst[each]:.2f}" for each in worst)
    logger.info("products were measured in %.1f s: %s serves, of %s", clock() - began, _named(way), found)
    return Choice(way, f"measured at {_counts()} tokens; least share of the fastest one's speed: {found}")


def _alike(way: Way, ways: Iterable[Way]) -> list[Way]:
    """Those that differ in how far ahead they read."""
    return [other for other in ways if replace(other, far=way.far) == way]


def _counts() -> str:
    return f"{', '.join(map(str, COUNTS[:-1]))} and {COUNTS[-1]}"


def _named(way: Way) -> str:
    threads = f"{way.threads} thread" + "s" * (way.threads > 1)
    return f"{way.product} on {threads}{' reading far ahead' if way.far else ''}"


def _key(shapes: Sequence[Shape], layers: int, ways: Sequence[Way], integers: bool) -> str:
    """Of all that a choice depends on."""
    given = (
        cpu_name(),
        library_name(),
        torch.__version__,
        list(shapes),
        layers,
        integers,
        [asdict(way) for way in ways],
    )
    return hashlib.sha256(json.dumps(given).encode()).hexdigest()[:24]


def _path(place: Path, key: str) -> Path:
    return place / "choices" / f"{key}.json"


def _kept(key: str, ways: Sequence[Way]) -> Choice | None:
    for path in (_path(place, key) for place in folders()):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            way, why = ways[ways.index(Way(**data["way"]))], str(data["why"])
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("the kept choice %s cannot be used (%s); it is measured again", path, error)
            continue
        return Choice(way, why)
    return None


def _keep(key: str, choice: Choice) -> None:
    path = _path(folder(), key)
    new = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps({"way": asdict(choice.way), "why": choice.why}), encoding="utf-8")
        new.replace(path)  # as a whole: another start may read it now
    except OSError as error:
        logger.warning(
            "the choice of products cannot be kept in %s: %s; the next start measures again; AERIE_KERNELS names "
            "another folder",
            path.parent,
            error.strerror,
        )
