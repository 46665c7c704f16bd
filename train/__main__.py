"""`python -m aerie.train STAGE CONFIG`: runs one stage of a training config, or every stage whose output is missing."""

import json
from pathlib import Path
from typing import Annotated

import typer
import yaml
from pydantic import ValidationError

from aerie.train.recital.config import TrainConfig, load_config

CORPUS = Path(__file__).parent / "data/docstrings.jsonl.gz"

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Train the demo pair: a target, then its EAGLE-3 head."
)
Config = Annotated[Path, typer.Argument(help="A file of configs/train/.")]
Again = Annotated[bool, typer.Option("--again", help="Replace a finished output.")]


@app.command()
def text(
    out: Annotated[Path, typer.Argument(help="Where to write the entries, .jsonl.gz.")], again: Again = False
) -> None:
    """Collect the docstrings of the running Python's standard library; renews the pinned corpus."""
    from aerie.train.recital.docstrings import collect, write

    _unless_there(out, again)
    write(out, entries := collect())
    typer.echo(f"{out}: {len(entries)} entries")


@app.command()
def questions(
    out: Annotated[Path, typer.Argument(help="Where to write prompts, .jsonl.")],
    count: Annotated[int, typer.Option(help="How many.")] = 600,
    held_out: Annotated[bool, typer.Option("--held-out", help="In phrasings that are never taught.")] = False,
    again: Again = False,
) -> None:
    """Write questions about the pinned docstrings as prompts for `aerie train`."""
    from aerie.train.recital.docstrings import read
    from aerie.train.recital.questions import as_prompts

    _unless_there(out, again)
    out.write_text(as_prompts(read(CORPUS), count, held_out=held_out), encoding="utf-8")
    typer.echo(f"{out}: {count} prompts")


@app.command()
def target(config: Config, again: Again = False) -> None:
    """Train the tokenizer and the target."""
    from aerie.train.recital.pretrain import pretrain

    run = _load(config).target
    _unless_there(Path(run.out) / "model.safetensors", again)
    pretrain(run)


@app.command()
def head(config: Config, again: Again = False) -> None:
    """Train the head on the finished target."""
    from aerie.train.recital.head_run import train_head

    loaded = _load(config)
    _needed(Path(loaded.target.out) / "model.safetensors", f"python -m aerie.train target {config}")
    _unless_there(Path(loaded.head.out) / "model.safetensors", again)
    train_head(loaded)


@app.command()
def peagle(
    config: Annotated[Path, typer.Argument(help="A file of configs/train/ that describes a P-EAGLE head.")],
    again: Again = False,
) -> None:
    """Train a P-EAGLE head on the finished target of its pair, and export it."""
    from aerie.train.recital.peagle_config import load_parallel
    from aerie.train.recital.peagle_run import train_parallel

    try:
        run, pair = load_parallel(config)
    except FileNotFoundError as error:
        _fail(f"there is no config at {error.filename}")
    except (yaml.YAMLError, ValidationError) as error:
        _fail(f"{config} is not a config of a P-EAGLE head: {error}")
    _needed(Path(pair.target.out) / "model.safetensors", f"python -m aerie.train target {run.pair}")
    _unless_there(Path(run.out) / "model.safetensors", again)
    train_parallel(run, pair)


@app.command()
def recite(
    config: Config,
    entries: Annotated[int, typer.Option(help="How many entries to ask about.")] = 200,
    folder: Annotated[Path | None, typer.Option(help="A target other than the config's.")] = None,
    seed: int = 0,
) -> None:
    """Ask the target about sampled entries; prints the shares recited exactly, as JSON."""
    from aerie.train.recital.recite import recite as ask

    run = _load(config).target
    _needed((folder or Path(run.out)) / "model.safetensors", f"python -m aerie.train target {config}")
    typer.echo(json.dumps(ask(Path(run.corpus), folder or Path(run.out), entries=entries, seed=seed)))


@app.command()
def preview(config: Config) -> None:
    """Export the pair as it stands in unfinished runs' checkpoints."""
    from aerie.train.recital.preview import preview as export

    typer.echo(export(_load(config)))


@app.command(name="all")
def everything(config: Config) -> None:
    """Run the stages whose output is missing: target, head; then recite."""
    loaded = _load(config)
    for stage, out in ((target, loaded.target.out), (head, loaded.head.out)):
        if (Path(out) / "model.safetensors").exists():
            typer.echo(f"{out} is there; kept")
        else:
            stage(config)
    recite(config)


def _load(path: Path) -> TrainConfig:
    try:
        return load_config(path)
    except FileNotFoundError:
        _fail(f"there is no config at {path}")
    except (yaml.YAMLError, ValidationError) as error:
        _fail(f"{path} is not a training config: {error}")
    raise AssertionError("_fail returned")


def _unless_there(out: Path, again: bool) -> None:
    if out.exists() and not again:
        _fail(f"{out} exists; give --again to replace it")


def _needed(path: Path, command: str) -> None:
    if not path.exists():
        _fail(f"{path} is missing; make it first: {command}")


def _fail(message: str) -> None:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)


if __name__ == "__main__":
    app()
