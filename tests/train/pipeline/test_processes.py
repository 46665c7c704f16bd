"""Training by several processes: the head of one, and nothing of the group is left when it is closed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.lines import read_own
from aerie.train.pipeline.fit import train_head
from tests.house import HOME
from tests.train.pipeline.tiny import changed

CLOSED = """
import os
import time
from pathlib import Path

import torch

from aerie.train.pipeline.fitting.processes import Processes


def of_the_group():
    found = []
    for thread in Path("/proc/self/task").iterdir():
        try:
            found.append((thread / "comm").read_text())
        except OSError:  # ended meanwhile
            continue
    return any("gloo" in name for name in found)


processes = Processes("cpu")
layer = torch.nn.Linear(4, 4)
layer(torch.ones(1, 4)).sum().backward()
processes.add_gradients(layer)
torch.optim.AdamW(layer.parameters()).step()
processes.wait()
before = of_the_group()
processes.close()
latest = time.monotonic() + 10
while of_the_group() and time.monotonic() < latest:  # the system lists a thread that has ended for a moment more
    time.sleep(0.05)
os.write(1, f"gloo {before} {of_the_group()}\\n".encode())
"""


@pytest.mark.timeout(400)
def test_two_processes_train_the_head_of_one(ready: PipelineConfig, tmp_path: Path) -> None:
    """Two processes over gloo by torchrun take a row each of what one process adds up."""
    alone = changed(ready, train={"steps": 2, "accumulate": 2, "checkpoint_every": 1})
    expected = train_head(alone)
    kept = expected.rename(tmp_path / "alone")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(alone.model_dump(mode="json")))
    done = two_processes("-m", "aerie", "train", "train", str(tmp_path / "config.yaml"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert [done.stderr.count(f"step {step} loss ") for step in (1, 2)] == [1, 1], "the first process tells, once"
    together = Path(ready.work) / "train"
    one, two = (load_file(folder / "checkpoint/weights.safetensors") for folder in (kept, together))
    for name in one:
        assert torch.allclose(one[name], two[name], atol=1e-6), name
    counts = [
        [line["conditional_accuracy"] for line in read_own(folder / "metrics.jsonl")] for folder in (kept, together)
    ]
    assert counts[0] == counts[1]


@pytest.mark.timeout(200)
def test_no_thread_of_the_group_outlives_it(tmp_path: Path) -> None:
    """One that frees a gradient while the interpreter ends aborts a process whose work is done."""
    (tmp_path / "closed.py").write_text(CLOSED)
    done = two_processes(str(tmp_path / "closed.py"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["gloo True False"] * 2


def two_processes(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=HOME, env=environment, capture_output=True, text=True, check=False)
