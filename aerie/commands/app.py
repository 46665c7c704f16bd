"""The commands of `aerie`: each parses its arguments, calls the part that does the work, and sets the exit code."""

import os
from pathlib import Path
from typing import Annotated

import typer

import aerie
from aerie.commands.announce import announce
from aerie.commands.bench import benches
from aerie.commands.probe import probes
from aerie.commands.train import train_command
from aerie.contracts.logs import log_to_stderr
from aerie.environment import overrides_from
from aerie.resolve import resolve_config, with_local_model

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they would show local variables, including keys
    help="Serve language models with EAGLE-3 speculation.",
)
app.add_typer(probes, name="probe")
app.add_typer(benches, name="bench")
app.command("train")(train_command)


@app.callback(invoke_without_command=True)
def front_door(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        print(f"aerie {aerie.__version__}")
        raise typer.Exit


@app.command(context_settings={"ignore_unknown_options": True})
def serve(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET [SETTING]...",
            help="A config file, a model folder or a hub id ORG/MODEL; then settings as section.key=value, or the "
            "flags of vLLM and SGLang",
        ),
    ],
) -> None:
    """Serve a model over the OpenAI API.

    aerie serve configs/serve/demo.yaml spec.depth=5 server.port=8001
    aerie serve ORG/MODEL --max-model-len 4096 --api-key SECRET

    `aerie settings` lists every setting; docs/coming-from.md lists the flags.
    """
    from aerie.aliases import split_words
    from aerie.serve import serve as run

    log_to_stderr()
    target, overrides = split_words(words)
    config = with_local_model(resolve_config(target, [*overrides_from(os.environ), *overrides]))
    raise typer.Exit(run(config, announce(config)))


@app.command()
def chat(
    url: Annotated[str, typer.Option(help="A server, as host:port or as a URL")] = "http://127.0.0.1:8000",
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy")] = 0.0,
    api_key: Annotated[str, typer.Option(envvar="AERIE_API_KEY")] = "none",
    drafted: Annotated[bool, typer.Option("--drafted", help="Show in green what the head guessed")] = False,
    tools: Annotated[Path | None, typer.Option(help="A JSON file of functions; you type what they return")] = None,
) -> None:
    """Talk to a running server in the terminal."""
    from aerie.commands.chat import converse, read_tools

    offered = [] if tools is None else read_tools(tools)
    converse(url, temperature=temperature, api_key=api_key, drafted=drafted, tools=offered)


@app.command()
def settings(
    markdown: Annotated[bool, typer.Option("--markdown", help="As the table of docs/configuration.md")] = False,
) -> None:
    """List every setting with its default and meaning."""
    from aerie.commands.settings import as_markdown
    from aerie.commands.settings import settings as listed

    if markdown:
        typer.echo(as_markdown(), nl=False)
        return
    for one in listed():
        typer.echo(f"{one.key} = {one.default}  ({one.kind})\n    {one.meaning}")
