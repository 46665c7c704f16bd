"""From a config to a worker: speculative if the target has a head, plain if it has none or with `spec.head: none`.

Called by the composition root. Checks shapes here once, so that no step meets one that it cannot run.
"""

import logging
from pathlib import Path

import torch

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.shape import DraftShape
from aerie.contracts.spec_section import SpecConfig
from aerie.contracts.step import MAX_NODES
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.build import (
    build_plain_worker,
    load_target,
    make_capacity,
    make_guides,
    mask_threads,
    read_target,
    runtime_of,
)
from aerie.engine.device import resolve_device, resolve_dtype
from aerie.engine.memory import HeadSizes, Sizes, plan_sizes
from aerie.engine.model.config import ModelConfig
from aerie.engine.step.graphs import capturable, recording, row_buckets
from aerie.engine.step.plain_graphs import PlainGraphs, StageKeep
from aerie.engine.step.plain_worker import PlainWorker
from aerie.engine.step.state import DeviceState, make_state
from aerie.spec.checkpoints.card import check_origin
from aerie.spec.checkpoints.registry import head_of, locate, read_pairs
from aerie.spec.drafters.drafter import Deployment, Drafter, Needs, ScratchSlots, recordable
from aerie.spec.drafters.registry import kind_of
from aerie.spec.round.graphs import RoundGraphs
from aerie.spec.round.round import Round
from aerie.spec.round.tails import Tails
from aerie.spec.worker import SpecWorker

logger = logging.getLogger("aerie.spec")


def build_worker(config: Config, kernels: Kernels = REFERENCES) -> PlainWorker | SpecWorker:
    """Raises ConfigError on a shape, a head or a target that cannot be served."""
    model = read_target(config)
    folder = find_head(config, model)
    if folder is not None and config.spec.require_provenance:
        check_origin(folder, config)
    return build_plain_worker(config, kernels) if folder is None else build_spec_worker(config, model, folder, kernels)


def build_spec_worker(config: Config, model: ModelConfig, folder: Path, kernels: Kernels = REFERENCES) -> SpecWorker:
    """A worker of the target and the drafter in `folder`."""
    check_simulation(config.spec)
    device = resolve_device(config)
    kind = kind_of(folder)
    dtype = resolve_dtype(config, model.dtype, device, widens=kernels.widens)
    checkpoint = kind.open(folder, Deployment(config, model, dtype, device, kernels))
    needs = checkpoint.needs
    reserve = reserved_slots(config.spec, needs.scratch_slots)
    tail, taps = tail_size(config, needs), len(needs.taps) * model.hidden_size
    head = HeadSizes(needs.kv_numbers, checkpoint.bytes, tail, taps)
    sizes = plan_sizes(config, model, reserve=reserve, head=head, kernels=kernels)
    target = load_target(config, model, sizes, needs.taps, kernels)
    drafter = checkpoint.load(target, sizes)
    tails = make_tails(sizes, tail, taps) if tail else None
    named = {"head": str(folder), "head_kind": kind.name, "head_format": checkpoint.format}
    report = named | _report(drafter, target.bytes) | {"tail_bytes": tails.bytes if tails else 0}
    refused = rest_refusal(config, needs)
    if refused is not None:
        report["resting"] = f"none: {refused}"
    capacity = make_capacity(config, target, sizes, kernels=kernels, drafts=True, tail=tail, extra=report)
    state = make_state(
        target,
        capacity,
        guides=make_guides(config, capacity),
        mask_threads=mask_threads(),
        seed_width=needs.seed_width,
        seed_dtype=sizes.dtype,
        poison=config.scheduler.poison,
        kernels=kernels,
        runtime=runtime_of(device),
    )
    phases = Round(state, drafter, config.spec)
    refusal = None if recordable(drafter) else "the head's passes cannot be recorded"
    attention = capturable(state, config.engine.graphs, refusal)
    if attention is None or not recordable(drafter):
        return SpecWorker(phases, tails=tails)
    with recording(state) as graphs:
        rounds = RoundGraphs(phases, drafter, graphs, attention, row_buckets(sizes.rows))
        keep = None if tails is None else staged_keeping(tails, state)
        plain = PlainGraphs(state, graphs, attention, keep=keep)
    return SpecWorker(phases, rounds=rounds, plain=plain, tails=tails)


def tail_size(config: Config, needs: Needs) -> int:
    """Tokens that a row may rest; 0 if rows do not."""
    wanted = config.spec.planner == "goodput" and rest_refusal(config, needs) is None
    return config.spec.resting_tokens if wanted else 0


def rest_refusal(config: Config, needs: Needs) -> str | None:
    """Why rows cannot rest where the planner wants them to; None if they can, or if it does not."""
    if config.spec.planner != "goodput" or config.spec.resting_tokens == 0:
        return None
    if not needs.taps:
        return "the head takes no taps, so its tokens cannot be kept for it"
    if config.engine.kind == "sglang-model":
        return "engine.kind is sglang-model, and its ranks keep no taps"
    return None


def make_tails(sizes: Sizes, size: int, width: int) -> Tails:
    """Empty tails of all rows, of `size` pairs with taps of `width` numbers."""
    stored = torch.float32 if sizes.device.type == "cpu" else sizes.dtype  # C++ writes taps as it computes them
    return Tails(sizes.rows, size, width, stored=stored, dtype=sizes.dtype, device=sizes.device)


def staged_keeping(tails: Tails, state: DeviceState) -> StageKeep:
    """How a recorded step keeps the taps of rows that rest."""
    return lambda plan, rows: tails.stage_keep(plan, rows, state.transfer)


def find_head(config: Config, model: ModelConfig) -> Path | None:
    """The folder of the target's head; None if the config disables it, or `auto` finds none on this machine."""
    wanted = config.spec.head
    if wanted == "none":
        return None
    if wanted == "auto":
        found = head_of((config.model.path, config.model.served_name or ""), model, read_pairs())
        here = None if found is None else locate(found)
        if found is not None and here is None:
            logger.warning("decoding without speculation: the registered head, %s, is not on this machine", found)
        return here
    folder = locate(wanted)
    if folder is None:
        raise ConfigError(
            f"spec.head is {wanted!r}: no such folder, and no such model in the local hub cache; download it first, or "
            f"set spec.head=none to decode without speculation",
            param="spec.head",
        )
    return folder


def shapes(spec: SpecConfig) -> dict[str, DraftShape]:
    """Every shape that the config can plan, by its key in the config."""
    if not spec.by_load:
        return {"spec": spec.shape}
    return {f"spec.by_load[{index}]": load.shape for index, load in enumerate(spec.by_load)}


def reserved_slots(spec: SpecConfig, scratch_slots: ScratchSlots) -> int:
    """Slots past a row's bound that a step may write: tree nodes, scratch of the drafter, pairs to extend.

    Raises ConfigError if the drafter's scratch does not fit one ancestor word.
    """
    reserve = 1
    for key, shape in shapes(spec).items():
        scratch = scratch_slots(shape.topk, shape.depth)
        if scratch > MAX_NODES:
            raise ConfigError(
                f"{key} drafts with {scratch} scratch slots a row at topk {shape.topk} and depth {shape.depth}; "
                f"at most {MAX_NODES} fit: lower {key}.topk or {key}.depth",
                param=key,
            )
        reserve = max(reserve, shape.nodes, scratch, shape.depth + 1)
    return reserve


def check_simulation(spec: SpecConfig) -> None:
    """Raises ConfigError if no shape drafts deep enough for the acceptance to simulate."""
    wanted, deepest = spec.simulate_acceptance, max(shape.depth for shape in shapes(spec).values())
    if wanted is not None and wanted > deepest + 1:
        raise ConfigError(
            f"spec.simulate_acceptance is {wanted:g}, and drafts of depth {deepest} commit at most {deepest + 1} "
            f"tokens a step: raise spec.depth or lower spec.simulate_acceptance",
            param="spec.simulate_acceptance",
        )


def _report(drafter: Drafter, target_bytes: int) -> dict[str, str | int | float | bool | None]:
    needs = drafter.needs
    return {
        "head_taps": ", ".join(str(tap) for tap in needs.taps),
        "head_bytes": drafter.bytes,
        "head_share": round(drafter.bytes / target_bytes, 4),
        "head_kv_bytes": drafter.kv_bytes,
        "draft_vocabulary": needs.draft_vocabulary,
    }
