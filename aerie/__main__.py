"""The `aerie` command."""

import os
import sys
from typing import Annotated

import typer
from rich.console import Console

import aerie
from aerie.announce import announce
from aerie.bench_commands import benches
from aerie.environment import overrides_from
from aerie.probe_commands import probes
from aerie.resolve import resolve_config, with_local_model
from contracts.errors import AerieError

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Serve language models with EAGLE-3 speculation.")
app.add_typer(probes, name="probe")
app.add_typer(benches, name="bench")
_errors = Console(stderr=True, highlight=False)

Overrides = Annotated[list[str] | None, typer.Argument(help="Settings as section.key=value, as in spec.depth=5")]


@app.callback(invoke_without_command=True)
def front_door(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        print(f"aerie {aerie.__version__}")
        raise typer.Exit


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="A config file, a model folder, or a hub id ORG/MODEL")],
) -> None:
    """Serve a model over the OpenAI API. Settings follow as section.key=value, or as the flags of vLLM and SGLang."""
    from aerie.aliases import overrides_of
    from aerie.serve import serve as run

    overrides = [*overrides_from(os.environ), *overrides_of(context.args)]
    config = with_local_model(resolve_config(target, overrides))
    raise typer.Exit(run(config, announce(config)))


@app.command()
def chat(
    url: Annotated[str, typer.Option(help="Base URL of a server")] = "http://127.0.0.1:8000",
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy")] = 0.0,
    api_key: Annotated[str, typer.Option(envvar="AERIE_API_KEY")] = "none",
    drafted: Annotated[bool, typer.Option("--drafted", help="Show in green what the head guessed")] = False,
) -> None:
    """Talk to a running server in the terminal."""
    from aerie.chat import converse

    converse(url, temperature=temperature, api_key=api_key, drafted=drafted)


@app.command()
def settings(
    markdown: Annotated[bool, typer.Option("--markdown", help="As the table of docs/configuration.md")] = False,
) -> None:
    """List every setting with its default and meaning."""
    from aerie.settings import as_markdown
    from aerie.settings import settings as listed

    if markdown:
        typer.echo(as_markdown(), nl=False)
        return
    for one in listed():
        typer.echo(f"{one.key} = {one.default}  ({one.kind})\n    {one.meaning}")


def main() -> None:
    """Runs the command; an error that is the user's to mend is one line and exit code 2."""
    try:
        app()
    except AerieError as error:
        _errors.print(f"aerie: {error.message}", markup=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
