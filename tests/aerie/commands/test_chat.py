"""`aerie chat` against a server of the same API, and against none."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from aerie.__main__ import main
from aerie.commands.app import app
from tests.e2e.conftest import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


def talk(server: Server, typed: str, *options: str) -> str:
    done = CliRunner().invoke(app, ["chat", "--url", server.url, *options], input=typed)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_talk_streams_and_counts(server: Server) -> None:
    output = talk(server, "What does textwrap.dedent do?\n\n/quit\n")
    assert "aerie-demo" in output and "acceptance length" in output and "a second" in output


def test_what_was_drafted_is_shown_and_the_text_is_the_same(server: Server) -> None:
    plain, shown = (
        talk(server, "What does textwrap.dedent do?\n/quit\n", *options) for options in ((), ("--drafted",))
    )
    assert plain.split("tokens,")[0] == shown.split("tokens,")[0]


def test_a_server_is_named_as_people_name_it(server: Server) -> None:
    for url in (f"{server.url}/v1", f"{server.url}/", server.url.removeprefix("http://")):
        done = CliRunner().invoke(app, ["chat", "--url", url], input="/quit\n")
        assert (done.exit_code, f"at {server.url};" in done.output) == (0, True), done.output


def test_the_arrow_keys_bring_earlier_questions_back(server: Server) -> None:
    """In a terminal of its own; the second answer is the first question's."""
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "aerie", "chat", "--url", server.url]
    talking = subprocess.Popen(command, stdin=end, stdout=end, stderr=end)
    shown = ""
    for answers, typed in enumerate(("What does json.dumps do?\n", "\x1b[A\n", "/quit\n")):
        while shown.count("acceptance length") < answers or not shown.endswith("> "):
            shown += os.read(terminal, 4096).decode(errors="replace")
        os.write(terminal, typed.encode())
    assert talking.wait(20) == 0
    os.close(terminal)
    os.close(end)
    assert shown.count("Serialize") == 2 and "^[[A" not in shown


def test_an_error_is_shown_and_the_talk_goes_on(server: Server) -> None:
    output = talk(server, f"{'word ' * 5000}\nWhat does textwrap.dedent do?\n", "--temperature", "0")
    assert "maximum context length is 2048" in output and "a second" in output


def test_without_a_server_it_says_how_to_start_one(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["aerie", "chat", "--url", "http://127.0.0.1:1"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2 and "make serve" in capsys.readouterr().err


def test_the_version_and_the_help() -> None:
    assert CliRunner().invoke(app, ["--version"]).output.startswith("aerie ")
    listed = CliRunner().invoke(app, ["--help"]).output
    assert all(command in listed for command in ("serve", "chat", "probe", "settings"))
