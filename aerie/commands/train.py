"""`aerie train STAGE CONFIG`: the training pipeline, with an engine for measurements and a server for answers."""

from pathlib import Path
from typing import Annotated

import typer


def train_command(
    stage: Annotated[
        str,
        typer.Argument(help="target, prompts, filter, respond, features, vocabulary, train, evaluate, export, or all"),
    ],
    config: Annotated[Path, typer.Argument(help="A file of configs/train/")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings as section.key=value")] = None,
    again: Annotated[bool, typer.Option("--again", help="Remove the stage's earlier output first")] = False,
) -> None:
    """Train a draft head: each stage reads the folders of earlier ones and writes its own.

    aerie train all configs/train/pipeline.yaml

    A stage that was killed goes on where it was; a finished one is never written over.
    """
    from aerie.contracts.errors import AerieError
    from aerie.contracts.places import find
    from aerie.train.pipeline.config import load_pipeline
    from aerie.train.pipeline.order import Surroundings, counts_of, run_all, run_stage
    from aerie.train_engine import measure_head, served_target

    loaded = load_pipeline(find(str(config)), overrides)
    surroundings = Surroundings(served_target, measure_head)
    if stage == "all":
        if again:
            raise AerieError("--again makes one stage anew; name it, or give the config another work folder")
        folder = run_all(loaded, surroundings)
    else:
        folder = run_stage(stage, loaded, surroundings, again=again)
    if (folder / "manifest.json").exists():  # only the first of several processes writes it
        typer.echo(f"{folder} {counts_of(folder)}")
