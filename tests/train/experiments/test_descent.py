"""The progress that a run prints, from wherever it goes on."""

import pytest
import torch

from aerie.train.experiments.descent import Progress
from aerie.train.heads.loss import Judged

HALF = Judged(torch.tensor(2.0), torch.tensor([4, 2]), torch.tensor([2, 1]), torch.tensor([4, 4]))


@pytest.mark.parametrize("start", [0, 1, 25, 26, 600])
def test_a_run_that_goes_on_anywhere_tells_of_its_own_steps(start: int, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(depth=2)
    for step in range(start + 1, start + 53):
        progress.add(step, HALF)
    reported = capsys.readouterr().out.splitlines()
    assert [int(line.split()[1]) for line in reported] == [n for n in range(start + 1, start + 52) if n % 25 == 0]
    assert all("loss 2.000 accuracies 0.500 0.500" in line for line in reported)
