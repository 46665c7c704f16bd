"""Trains the target that a section `pretrain` describes."""

from pathlib import Path

from aerie.train.demo import pretrain as tasks
from aerie.train.demo.config import DocstringTarget, TaskTarget
from aerie.train.demo.corpus import pretrain as corpus


def train_target(run: DocstringTarget | TaskTarget, out: Path, *, seed: int) -> None:
    """Writes the target to `out`, where its checkpoints are too; resumes from them after a kill."""
    if isinstance(run, DocstringTarget):
        corpus.pretrain(run, out, seed=seed)
    else:
        tasks.pretrain(run, out, seed=seed)
