"""`python -m train.demo CONFIG`: trains the target of demo pair 2; goes on where it was stopped."""

from pathlib import Path
from typing import Annotated

import typer

from train.demo.config import load_tasks
from train.demo.pretrain import pretrain


def main(
    config: Annotated[Path, typer.Argument(help="A config of generated tasks, such as configs/train/tasks.yaml.")],
) -> None:
    """Train the tokenizer and the target of demo pair 2."""
    pretrain(load_tasks(config))


typer.run(main)
