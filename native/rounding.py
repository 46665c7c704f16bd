"""Whether a draft head is faster in 8 bits on this machine, where products of bf16 are dot products or AMX's: measured
while it is loaded. Called for heads that `spec.quantization: auto` serves.

Integers are widened for these products, which takes time, and reading them takes half as much: what pays depends on the
head's size and on the CPU.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from aerie.engine.model.matrix import rounded
from aerie.native.choice import COUNTS, SMALL, trial_weights
from aerie.native.products import Multiplier
from aerie.native.trials import PanelTrial, Shape, Way, least_seconds

_SECONDS = 0.15


def int8_pays(shapes: Sequence[Shape], way: Way) -> bool:
    """Whether matrices [out, in] of a head take less time in 8 bits than `way` does, in the geometric mean over 1 to 64
    tokens: drafts have a token or as many as requests, extends several, prompts many.
    """
    if way.multiplier is Multiplier.FP32 or sum(out * inputs for out, inputs in shapes) < SMALL:
        return True
    weights = trial_weights(shapes, 1)
    trials = {
        way: PanelTrial(weights, way.multiplier),
        replace(way, product="int8"): PanelTrial([rounded(weight.bfloat16()) for weight in weights], way.multiplier),
    }
    clock = time.thread_time if way.threads == 1 else time.perf_counter
    stored, in_int8 = least_seconds(trials, COUNTS, seconds=_SECONDS, clock=clock).values()
    return sum(math.log(in_int8[count] / stored[count]) for count in COUNTS) < 0.0
