"""The metrics of a run: JSON Lines in the stage's folder, TensorBoard files beside it, a line for people.

The lines depend on the steps alone and are cut back to the checkpoint on resume, so a killed run leaves the same bytes
as an uninterrupted one. TensorBoard's files contain times; they are outside the stage's folder.
"""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from aerie.contracts.errors import AerieError
from aerie.train.heads.loss import acceptance_length
from aerie.train.pipeline.data.lines import as_line, mend
from aerie.train.progress import say

FILE = "metrics.jsonl"


class Metrics:
    """Written by the first process; `start` is the step that the run resumes from."""

    def __init__(self, folder: Path, board: Path, *, start: int) -> None:
        self._path = folder / FILE
        kept = [line for line in mend(self._path) if line["step"] <= start]
        self._path.write_bytes(b"".join(map(as_line, kept)))
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise AerieError("metrics for TensorBoard need tensorboardX: pip install -e '.[train]'") from None
        self._board = SummaryWriter(logdir=str(board), purge_step=start or None)

    def write(self, line: dict[str, Any]) -> None:
        with self._path.open("ab") as file:
            file.write(as_line(line))
        for key, value in line.items():
            if isinstance(value, list):
                for depth, one in enumerate(value):
                    self._board.add_scalar(f"{key}/{depth + 1}", one, line["step"])
            elif key != "step":
                self._board.add_scalar(key, value, line["step"])

    def close(self) -> None:
        self._board.close()


def line_of(step: int, loss: float, reached: Tensor, right: Tensor, *, rate: float, gradient: float) -> dict[str, Any]:
    """Figures of the updates since the last line, `reached` and `right` [depth]: mean loss; for each depth the share of
    drafts that were right among those whose earlier ones were; the acceptance length of a greedy chain with these
    shares.
    """
    return {
        "step": step,
        "loss": loss,
        "conditional_accuracy": [round(float(one), 6) for one in right / reached.clamp(min=1)],
        "acceptance_length": round(acceptance_length(reached, right), 6),
        "rate": rate,
        "gradient_norm": gradient,
    }


def tell(line: dict[str, Any]) -> None:
    accuracies = " ".join(f"{one:.3f}" for one in line["conditional_accuracy"])
    say(
        f"step {line['step']} loss {line['loss']:.4f} accuracies {accuracies} "
        f"length {line['acceptance_length']:.2f} rate {line['rate']:.2e}"
    )


def last_line(folder: Path) -> dict[str, Any]:
    """The last line of a finished run."""
    found: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8").splitlines()[-1])
    return found
