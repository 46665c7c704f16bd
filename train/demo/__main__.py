"""`python -m aerie.train.demo STAGE CONFIG`: trains demo pair 2 on generated tasks.

A stage goes on where it was stopped.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from aerie.train.demo.config import load_tasks

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Train a pair on generated tasks: target, head.")
Config = Annotated[Path, typer.Argument(help="A config of generated tasks, such as configs/train/tasks.yaml.")]


@app.command()
def target(config: Config) -> None:
    """Train the tokenizer and the target."""
    from aerie.train.demo.pretrain import pretrain

    pretrain(load_tasks(config).target)


@app.command()
def head(config: Config) -> None:
    """Train the EAGLE-3 head on the finished target's own answers."""
    from aerie.train.demo.head_run import train_head

    train_head(load_tasks(config))


@app.command()
def judge(
    config: Config,
    exercises: Annotated[int, typer.Option(help="How many of each task.")] = 24,
    new_phrasings: Annotated[bool, typer.Option("--new-phrasings", help="In phrasings that are never taught.")] = False,
) -> None:
    """Say how often the finished target answers exactly right, by task, on values that are never taught."""
    from aerie.train.demo.judge import judged_folder

    run = load_tasks(config).target
    typer.echo(json.dumps(judged_folder(run, count=exercises, new_phrasings=new_phrasings)))


app()
