"""`python -m aerie.train`: the tools around the demo's tasks. `aerie train` trains."""

import json
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from aerie.contracts.errors import AerieError
from aerie.train.pipeline.config import load_pipeline

app = typer.Typer(add_completion=False, no_args_is_help=True, help="The demo's tasks, and how well a target does them.")
Again = Annotated[bool, typer.Option("--again", help="Replace a finished output.")]


@app.command()
def text(
    out: Annotated[Path, typer.Argument(help="Where to write the entries, .jsonl.gz.")], again: Again = False
) -> None:
    """Collect the docstrings of the running Python's standard library; renews the pinned corpus."""
    from aerie.train.demo.corpus import collect, write

    _unless_there(out, again)
    write(out, entries := collect())
    typer.echo(f"{out}: {len(entries)} entries")


@app.command()
def exercises(
    out: Annotated[Path, typer.Argument(help="Where to write conversations, .jsonl.")],
    count: Annotated[int, typer.Option(help="How many of each task.")] = 8,
    again: Again = False,
) -> None:
    """Write held-out exercises of every generated task in turn, up to their first answer, for load tests."""
    from aerie.train.demo.judge import held_out
    from aerie.train.demo.tasks import TASKS
    from aerie.train.demo.tasks.exercise import answers

    _unless_there(out, again)
    turns = zip(*(held_out(task, count, seed=0) for task in TASKS), strict=True)
    lines = [
        {"messages": drawn.messages[: answers(drawn)[0]]} | ({"tools": drawn.tools} if drawn.tools else {})
        for turn in turns
        for drawn in turn
    ]
    out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    typer.echo(f"{out}: {len(lines)} conversations")


@app.command()
def judge(
    config: Annotated[
        Path, typer.Argument(help="A pipeline with a section `pretrain`, such as configs/train/demo.yaml.")
    ],
    count: Annotated[int, typer.Option(help="How many exercises of each task.")] = 24,
    target: Annotated[Path | None, typer.Option(help="A target other than the config's.")] = None,
    new_phrasings: Annotated[
        bool, typer.Option("--new-phrasings", help="Exercises in phrasings that are never taught.")
    ] = False,
) -> None:
    """How often the finished target is exactly right on values never taught, by task, as JSON."""
    try:
        loaded = load_pipeline(config)
        run, folder = loaded.pretrain, target or Path(loaded.target)
        if run is None:
            raise AerieError(f"{config} has no section pretrain, which says what the target was taught")
        if not (folder / "model.safetensors").exists():
            raise AerieError(f"there is no target in {folder}; make it first: aerie train target {config}")
    except AerieError as error:
        _fail(str(error))
    from aerie.train.demo.judge import judged_folder

    typer.echo(json.dumps(judged_folder(folder, run, count=count, seed=loaded.seed, new_phrasings=new_phrasings)))


def _unless_there(out: Path, again: bool) -> None:
    if out.exists() and not again:
        _fail(f"{out} exists; give --again to replace it")


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)


if __name__ == "__main__":
    app()
