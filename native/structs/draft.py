"""A drafting step as kernels read it (src/round.cpp), and whether they can draft it."""

import ctypes
import math
from ctypes import c_char_p, c_float, c_long, c_void_p

from aerie.contracts.spec_section import SpecConfig
from aerie.contracts.step import DecodeWork, Longs, StepPlan
from aerie.native.structs.head import NativeHead
from aerie.native.structs.plan import Step
from aerie.spec.drafters.drafter import Drafter
from aerie.spec.drafters.eagle3 import Eagle3


class Drafts(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("head", "heats", "tapped", "forced")),
        *((name, c_char_p) for name in ("nodes", "extends")),
        *((name, c_long) for name in ("boundaries", "depth", "topk")),
        ("floor", c_float),
    )

    def force(self, forced: Longs) -> None:
        """forced [rows, depth]: tokens that grammars force in chains, -1 elsewhere."""
        self.kept_forced = forced
        self.forced = forced.ctypes.data


def drafts_with(drafter: Drafter) -> bool:
    """Whether src/draft.cpp drafts as this drafter does. Others draft in torch, and are extended in C++ if they have a
    head (native_head).
    """
    return type(drafter) is Eagle3


def drafts_plainly(spec: SpecConfig, step: Step, *, trees: bool) -> bool:
    """Whether drafts need no noise and no filters, and the target's choice decides acceptance.
    Filters cannot change the most likely token, which is all that chains need.
    """
    return (
        spec.simulate_acceptance is None
        and (not step.samples or math.isinf(spec.draft_temperature))
        and not (step.filters and trees)
    )


def fits(head: NativeHead, plan: StepPlan, work: DecodeWork) -> bool:
    """Whether one pass holds a level of all rows, and all of them draft if they draft trees."""
    return (work.topk == 1 or all(plan.drafting)) and plan.rows.size * work.topk <= head.body.most


def drafts_of(head: NativeHead, spec: SpecConfig, plan: StepPlan, work: DecodeWork) -> Drafts:
    heats = None
    if work.topk > 1:
        given = spec.edge_temperatures[: work.depth]
        heats = (c_float * work.depth)(*given, *[1.0] * (work.depth - len(given)))
    made = Drafts(
        ctypes.addressof(head.struct),
        None if heats is None else ctypes.addressof(heats),
        ctypes.addressof(head.taps),
        None,
        work.nodes.tobytes(),
        plan.drafting.tobytes(),
        len(head.taps),
        work.depth,
        min(work.topk, head.draft_vocabulary),
        math.log(spec.confidence_threshold) if spec.confidence_threshold else -math.inf,
    )
    made.kept = heats
    return made
