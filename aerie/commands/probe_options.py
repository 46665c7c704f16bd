"""Shared by the probe commands: their options, the configs and prompts from them, and the final table and JSON."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.labels import labels
from aerie.resolve import resolve_config, with_local_model


def _writable(path: Path | None) -> Path | None:
    """Checks `path` before anything is measured, so that no measurement is lost because it cannot be written."""
    if path is None:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        allowed = os.access(path if path.exists() else path.parent, os.W_OK) and not path.is_dir()
    except OSError:
        allowed = False
    if not allowed:
        raise ConfigError(f"--json {path} cannot be written; name another file")
    return path


class Asked(StrEnum):
    """What a probe asks."""

    DOCSTRINGS = "docstrings"
    DEMO = "demo"


Target = Annotated[str, typer.Argument(help="A config file, a model folder, or a hub id ORG/MODEL")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings as section.key=value, as in spec.depth=5")]
Json = Annotated[Path | None, typer.Option("--json", callback=_writable, help="Write cells and provenance here")]
Prompts = Annotated[int, typer.Option(min=1, help="Held-out prompts to ask")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens of each answer at most")]
Longest = Annotated[
    int | None, typer.Option("--max-tokens", min=1, help="Tokens of each answer at most; by default whole exercises")
]
Quick = Annotated[bool, typer.Option("--quick", help="A few short answers: shows that it works, measures little")]
Resume = Annotated[bool, typer.Option("--resume", help="Keep the cells of --json and measure the others")]
Mix = Annotated[
    Asked | None,
    typer.Option(
        help="demo asks held-out exercises of every generated task, in turn, docstrings about Python's library; by "
        "default demo where the chat template mentions tools"
    ),
]
Shape = Annotated[str | None, typer.Option(help="depth,topk,nodes in place of the config's, as in 5,4,16")]

QUICK_PROMPTS, QUICK_TOKENS = 8, 12
WHOLE = 400
"""Tokens that whole answers to exercises have at most."""


def config_of(target: str, overrides: list[str] | None) -> Config:
    return with_local_model(resolve_config(target, overrides or []))


def inline(config: Config) -> Config:
    """The config with an inline lane: to measure acceptance alone, a separate lane process only adds startup time."""
    return config.model_copy(update={"engine": config.engine.model_copy(update={"lane": "inline"})})


def mix_of(config: Config, mix: Asked | None) -> Asked:
    """The mix that is named, or the one that the chat template can show."""
    from aerie.commands.prompts import shows_tools

    return mix or (Asked.DEMO if shows_tools(config) else Asked.DOCSTRINGS)


def prompts_of(config: Config, count: int, mix: Asked | None = None) -> list[list[int]]:
    from aerie.commands.prompts import held_out_prompts, mixed_prompts

    plain = mix_of(config, mix) is Asked.DOCSTRINGS
    return held_out_prompts(config, count) if plain else mixed_prompts(config, count)


def asked_of(
    config: Config, prompts: int, longest: int | None, mix: Asked | None, *, short: int, quick: bool
) -> tuple[list[list[int]], int]:
    """Prompts, and tokens of each answer at most: whole answers to exercises, and `short` ones to questions, unless
    `longest` names another limit; few of either with `--quick`.
    """
    usual = short if mix_of(config, mix) is Asked.DOCSTRINGS else WHOLE
    count, most = (QUICK_PROMPTS, QUICK_TOKENS) if quick else (prompts, longest or usual)
    return prompts_of(config, count, mix), most


def say(text: str) -> None:
    typer.echo(text, err=True)


def end(
    title: str,
    cells: list[dict[str, object]],
    columns: dict[str, str],
    config: Config,
    json: Path | None,
    **extra: Any,
) -> None:
    from aerie.probe.report import show, write_report

    show(". ".join((title, *labels(config).values())), cells, columns)
    if json is not None:
        write_report(json, cells, config, **extra)
