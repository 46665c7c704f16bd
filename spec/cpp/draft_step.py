"""A step that drafts, in a call for each phase (engine/cpp/round.cpp): around a small model's passes, operators of
Python and torch cost a third of its time.
"""

import ctypes
import math
from ctypes import c_char_p, c_float, c_long, c_void_p

from contracts.spec_section import SpecConfig
from contracts.step import DecodeWork, StepPlan
from engine.batch import stage_changes
from engine.clock import ReadTimes
from engine.cpp.library import library
from engine.cpp.step import Step, step_of, told
from engine.state import DeviceState
from spec import draft_step as twins
from spec.cpp.head import HeldHead, held_head
from spec.draft_step import Sent
from spec.head import Head


class _Drafts(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("head", "heats", "tapped")),
        ("nodes", c_char_p),
        *((name, c_long) for name in ("boundaries", "depth", "topk")),
        ("floor", c_float),
    )


def draft_step(state: DeviceState, head: Head, spec: SpecConfig, plan: StepPlan, times: ReadTimes, sent: Sent) -> None:
    held, work = held_head(head), plan.decode
    assert work is not None
    fits = held is not None and all(plan.drafting) and plan.rows.size * work.topk <= held.body.most
    step = step_of(state, plan, int(sum(work.nodes))) if fits else None
    if held is None or step is None or not _plain(spec, head, step, trees=work.topk > 1):
        twins.draft_step.twin(state, head, spec, plan, times, sent)
        return
    kernels, phase = library(), state.clock.phase
    given = ctypes.byref(step), ctypes.byref(_drafts(held, head, spec, work))
    answer = told(plan, work.depth + 1, times)
    with phase("draft"):
        stage_changes(plan, state.tables, state.transfer)()
        kernels.round_drafted(answer.words, *given)
    with phase("verify"):
        kernels.round_verified(*given)
    with phase("accept"):
        kernels.round_accepted(answer.words, *given)
    sent(answer)
    with phase("extend"):
        kernels.round_extended(*given)


def _plain(spec: SpecConfig, head: Head, step: Step, *, trees: bool) -> bool:
    """Whether the head drafts level by level, without noise and filters, and what the target chooses decides. Filters
    cannot change what is likeliest, which is all that chains ask for.
    """
    return (
        not head.config.parallel
        and spec.simulate_acceptance is None
        and (not step.samples or math.isinf(spec.draft_temperature))
        and not (step.filters and trees)
    )


def _drafts(held: HeldHead, head: Head, spec: SpecConfig, work: DecodeWork) -> _Drafts:
    heats = None
    if work.topk > 1:
        given = spec.edge_temperatures[: work.depth]
        heats = (c_float * work.depth)(*given, *[1.0] * (work.depth - len(given)))
    made = _Drafts(
        ctypes.addressof(held.struct),
        None if heats is None else ctypes.addressof(heats),
        ctypes.addressof(held.taps),
        work.nodes.tobytes(),
        len(head.config.taps),
        work.depth,
        min(work.topk, head.config.draft_vocabulary),
        math.log(spec.confidence_threshold) if spec.confidence_threshold else -math.inf,
    )
    made.kept = heats
    return made
