"""What README and docs name exists: paths, links, commands, settings, flags; their tables are what the code says."""

import ast
import importlib
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer
import yaml

from aerie.aliases import as_markdown as aliases_table
from aerie.aliases import overrides_of
from aerie.commands.app import app
from aerie.commands.settings import as_markdown as settings_table
from aerie.commands.settings import settings
from aerie.contracts.config import known_keys, load_config, parse_config
from aerie.contracts.errors import AerieError
from aerie.server.openai.bodies import (
    AnswerBody,
    ChatBody,
    CompletionBody,
    JsonSchema,
    SpeculationOptions,
    StreamOptions,
    StructuredOutputs,
)
from aerie.server.openai.distribution import as_markdown as sampling_table
from aerie.server.openai.unsupported import UNSUPPORTED
from aerie.server.responses.bodies import REFUSED, ResponseBody
from aerie.train.__main__ import app as train_app
from tests.house import HOME, MAY_IMPORT

PAGES = [HOME / "README.md", *sorted((HOME / "docs").rglob("*.md"))]
SECTIONS = "model|engine|scheduler|spec|sglang|server|limits"
ROOMS = "|".join([*MAY_IMPORT, "configs", "docker", "docs", "tests", "scripts", "models", "notebooks"])


@cache
def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and content of the fenced blocks."""
    yield from re.findall(r"^```(\w*)\n(.*?)^```$", text(page), re.MULTILINE | re.DOTALL)


def missing_links(page: Path, content: str) -> list[str]:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", content)
    return [t for t in targets if not t.startswith(("http://", "https://")) and not (page.parent / t).exists()]


def missing_paths(content: str) -> list[str]:
    """Paths in code quotes that begin with a room of the house; `*` matches."""
    named = set(re.findall(rf"`((?:{ROOMS})/[\w./*-]*)`", content))
    return [name for name in named if not any(HOME.glob(name.rstrip("/")))]


def unknown_settings(content: str) -> list[str]:
    files = r"\.(?:py|md|yaml|json|png|sh|toml)"
    quoted = re.findall(rf"(?<![\w/.-])(({SECTIONS})\.([a-z_]+))(?![\w/]|{files})", content)
    whole = {f"{section}.{key}" for _, section, key in quoted if f".{key}" not in (".py", ".md", ".yaml", ".json")}
    return sorted(whole - set(known_keys()) - {"spec.worker", "server.app", "spec.build"})


def unknown_flags(content: str) -> list[str]:
    """Flags quoted alone, as in `--json`."""
    return sorted(set(re.findall(r"`(--[a-z][\w-]*)`", content)) - known_flags())


@cache
def known_flags() -> set[str]:
    commands = [typer.main.get_command(app), typer.main.get_command(train_app)]
    flags = set(re.findall(r"--[a-z][\w-]*", aliases_table()))
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        flags |= {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    return flags


def missing_anchors(page: Path, content: str) -> list[str]:
    """Links to headings, of this page or another."""
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", content)
    return [f"{to}#{anchor}" for to, anchor in links if anchor not in anchors(page.parent / to if to else page)]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"(?m)^#+ (.+)$", text(page)) if page.is_file() else []
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_names(source: str) -> list[str]:
    """What a Python example imports from the house and would not find."""
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    own = [node for node in imports if (node.module or "").split(".")[0] in ROOMS.split("|")]
    return [
        f"{node.module}.{alias.name}"
        for node in own
        for alias in node.names
        if not hasattr(importlib.import_module(node.module or ""), alias.name)
    ]


def commands(content: str) -> list[list[str]]:
    """Words of every `aerie ...`, `make ...` and `python -m aerie.train ...` line or quote."""
    lines = re.findall(r"(?m)^(?:\$ )?((?:aerie|make|python -m aerie.train) [^\n`#]*)", content)
    quotes = re.findall(r"`((?:aerie|make|python -m aerie.train) [^`\n]*)`", content)
    return [line.split("  ")[0].split() for line in lines + quotes]


def unknown_commands(content: str) -> list[str]:
    return [" ".join(words) for words in commands(content) if not _known(words)]


def _known(words: list[str]) -> bool:
    if words[0] == "make":
        return all(word in make_targets() or "=" in word for word in words[1:])
    click = typer.main.get_command(train_app if words[0] == "python" else app)
    rest = words[3:] if words[0] == "python" else words[1:]
    while rest and hasattr(click, "commands") and rest[0] in click.commands:
        click, rest = click.commands[rest[0]], rest[1:]
    if hasattr(click, "commands") and rest and not rest[0].startswith("-") and rest[0] not in ("...",):
        return False
    options = {flag for parameter in click.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    given = [word.partition("=")[0] for word in rest if word.startswith("--")]
    if click.name == "serve":
        overrides_of(rest[1:])
        return True
    return all(flag in options for flag in given)


@cache
def make_targets() -> set[str]:
    return set(re.findall(r"(?m)^([\w-]+):", (HOME / "Makefile").read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(HOME).as_posix())
def test_what_a_page_names_exists(page: Path) -> None:
    content = text(page)
    assert not missing_links(page, content)
    assert not missing_paths(content)
    assert not unknown_settings(content)
    assert not unknown_commands(content)
    assert not unknown_flags(content)
    assert not missing_anchors(page, content)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(HOME).as_posix())
def test_code_blocks_are_code(page: Path) -> None:
    for language, content in blocks(page):
        if language == "python":
            assert not missing_names(content)
        if language in ("yaml", "yml"):
            parse_config(yaml.safe_load(content))


def test_each_check_catches_what_is_wrong() -> None:
    assert missing_links(PAGES[0], "[a](docs/nowhere.md)") == ["docs/nowhere.md"]
    assert missing_paths("see `engine/nothing.py`, and `engine/*.py`") == ["engine/nothing.py"]
    assert unknown_settings("`spec.dept=3`, spec.depth, spec/drafters/eagle3.py") == ["spec.dept"]
    assert unknown_commands("make tests\naerie probe compere X\naerie probe compare X --jsn a\n`aerie chat`") == [
        "make tests",
        "aerie probe compere X",
        "aerie probe compare X --jsn a",
    ]
    assert unknown_flags("`--json` and `--max-model-len`, not `--jsn`") == ["--jsn"]
    assert missing_anchors(PAGES[0], "[a](#start) [b](docs/api.md#usage) [c](docs/api.md#use)") == ["docs/api.md#use"]
    assert missing_names("from aerie import LLM, LLN\nfrom openai import Nothing") == ["aerie.LLN"]


def test_the_table_of_settings_is_the_code_s() -> None:
    assert settings_table() in text(HOME / "docs/configuration.md"), "renew it: aerie settings --markdown"
    assert all(setting.meaning for setting in settings())


def test_the_tables_of_flags_are_the_code_s() -> None:
    assert aliases_table() in text(HOME / "docs/coming-from.md"), "renew it: aerie.aliases.as_markdown()"


def test_the_table_of_sampling_fields_is_the_code_s() -> None:
    assert sampling_table() in text(HOME / "docs/api.md"), "renew it: aerie.server.openai.distribution.as_markdown()"


def test_the_api_page_has_every_field() -> None:
    page = text(HOME / "docs/api.md")
    offered, refused = (set(re.findall(r"`(\w+)`", section(page, name))) for name in ("Fields", "Refused fields"))
    bodies = (ChatBody, CompletionBody, SpeculationOptions, StreamOptions)
    taken = {name for body in bodies for name in body.model_fields}
    inner = {
        field.alias or name for body in (JsonSchema, StructuredOutputs) for name, field in body.model_fields.items()
    }
    assert not taken - offered, "fields that the page does not name"
    answered = (
        inner
        | {"text", "json_object", "json_schema"}
        | {"role", "content", "token_ids", "prompt_token_ids", "drafted", "extra_body"}
    )
    assert not offered - taken - answered, "fields that nobody reads"
    assert refused == set(UNSUPPORTED)


def test_the_api_page_has_every_field_of_a_response() -> None:
    named = set(re.findall(r"`(\w+)`", section(text(HOME / "docs/api.md"), "Responses")))
    assert not set(ResponseBody.model_fields) - set(AnswerBody.model_fields) - {"chat_template_kwargs"} - named
    assert not set(REFUSED) - named


def test_the_api_page_has_every_route_and_status() -> None:
    page = text(HOME / "docs/api.md")
    sources = "".join(path.read_text(encoding="utf-8") for path in (HOME / "server/routes").glob("*.py"))
    routes = {
        f"{method.upper()} {path.replace(':path', '')}"
        for method, path in re.findall(r'@router\.(get|post)\(\s*"([^"]+)"', sources)
    }
    assert routes and set(re.findall(r"`((?:GET|POST) /[^`]*)`", page)) == routes | {"GET /"}
    reported = {(int(status), kind) for status, kind in re.findall(r"(?m)^\| (\d{3}) \| `(\w+)` \|", page)}
    importlib.import_module("aerie.server.app")
    assert reported == {(error.status, error.kind) for error in all_errors(AerieError)}


def all_errors(kind: type[AerieError]) -> Iterator[type[AerieError]]:
    """The house's errors; all are told over HTTP."""
    if kind.__module__.startswith("aerie."):
        yield kind
    for below in kind.__subclasses__():
        yield from all_errors(below)


def section(page: str, heading: str) -> str:
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_shipped_configs_load() -> None:
    for path in sorted((HOME / "configs/serve").glob("*.yaml")):
        load_config(path)


def test_the_license_of_what_is_used_is_named() -> None:
    notice = text(HOME / "NOTICE")
    assert "Python Software Foundation" in notice and "EAGLE" in notice


def test_nothing_speaks_of_the_workplace() -> None:
    """Addresses of package registries and paths of a machine have no place in what is committed."""
    done = subprocess.run(["git", "-C", str(HOME), "ls-files"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    words = re.compile("/".join(["", "work", "main"]) + r"|files\.python" + r"hosted|pypi\." + "org")
    for name in done.stdout.splitlines():
        path = HOME / name
        if path.suffix in (".py", ".md", ".txt", ".toml", ".yaml", ".yml", ".sh", ".json", "") and path.is_file():
            found = words.search(path.read_text(encoding="utf-8", errors="ignore"))
            assert found is None, f"{name} says {found.group()!r}"
