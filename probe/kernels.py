"""`aerie probe kernels`: the cost of multiplying by the target's matrices, by the instruction set that Aerie's kernels
and torch's libraries are limited to. Called by the command line.

It goes in pieces, one matrix with one instruction set, each in a process of its own: a piece that is measured stays,
whatever stops the next one.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace

from aerie.contracts.errors import ConfigError
from aerie.native.march import LEVELS, lacking
from aerie.probe.kernel_cells import LAYER, Cell, layer_cells
from aerie.probe.multiplications import Measure

_TORCH_LIMITS = {
    "x86-64-v2": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "x86-64-v3": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2",
    },
}
"""Variables that limit torch's libraries to the instructions of a level."""


def measure_marches(
    measure: Measure,
    marches: Sequence[str],
    *,
    known: Sequence[Cell] = (),
    seconds: float = float("inf"),
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[Cell]]:
    """The cells of each piece that is not `known`, for each level of LEVELS that this CPU can run. The last matrix of a
    level brings those of the whole layer with it. No piece begins after so many seconds.

    Raises ConfigError if the `known` cells are of other numbers of tokens or threads.
    """
    _check(measure, known)
    end = clock() + seconds
    for march in marches:
        level = LEVELS[march]
        if (reason := lacking(level)) is not None:
            say(reason)
            continue
        limited = replace(measure, fp16="avx2" in level.features)
        cells = [cell for cell in known if cell["march"] == march and cell["matrix"] != LAYER]
        for name in measure.shapes:
            if any(cell["matrix"] == name for cell in cells):
                continue
            if clock() >= end:
                return
            say(f"{march}: {name}")
            piece = [{"march": march} | cell for cell in _measured(limited, name, march)]
            cells += piece
            whole = {cell["matrix"] for cell in cells} == set(measure.shapes)
            yield piece + [{"march": march} | cell for cell in layer_cells(cells)] if whole else piece


def _measured(measure: Measure, name: str, march: str) -> list[Cell]:
    """The cells of `measure_matrix` in a new process."""
    done = subprocess.run(
        [sys.executable, "-m", "aerie.probe.multiplications", json.dumps({"measure": asdict(measure), "matrix": name})],
        env=os.environ | {"AERIE_MARCH": march} | _TORCH_LIMITS.get(march, {}),
        stdout=subprocess.PIPE,
        check=True,
    )
    cells: list[Cell] = json.loads(done.stdout)
    return cells


def _check(measure: Measure, known: Sequence[Cell]) -> None:
    for name, asked in (("tokens", set(measure.tokens)), ("threads", {measure.threads})):
        measured = {cell[name] for cell in known}
        if measured - asked:
            raise ConfigError(
                f"--resume cannot continue a file with {name} of {_listed(measured)} where this run has "
                f"{_listed(asked)}; name another file, or remove it"
            )


def _listed(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
