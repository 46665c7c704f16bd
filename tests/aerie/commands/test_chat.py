"""`aerie chat` against a server of the same API, and against none."""

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aerie.__main__ import main
from aerie.commands.app import app
from aerie.commands.chat import read_tools
from aerie.contracts.errors import AerieError
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
    output = talk(server, "Count from 20 to 60 in steps of 2.\n\n/quit\n")
    assert "aerie-demo" in output and "acceptance length" in output and "a second" in output


def test_what_was_drafted_is_shown_and_the_text_is_the_same(server: Server) -> None:
    plain, shown = (
        talk(server, "Count from 20 to 60 in steps of 2.\n/quit\n", *options) for options in ((), ("--drafted",))
    )
    assert plain.split("tokens,")[0] == shown.split("tokens,")[0]


def test_a_server_is_named_as_people_name_it(server: Server) -> None:
    for url in (f"{server.url}/v1", f"{server.url}/", server.url.removeprefix("http://")):
        done = CliRunner().invoke(app, ["chat", "--url", url], input="/quit\n")
        assert (done.exit_code, f"at {server.url};" in done.output) == (0, True), done.output


def test_the_arrow_keys_bring_earlier_questions_back(server: Server) -> None:
    """In a terminal of its own; the second answer is to the first question."""
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "aerie", "chat", "--url", server.url]
    talking = subprocess.Popen(command, stdin=end, stdout=end, stderr=end)
    shown = ""
    for answers, typed in enumerate(("Count from 5 to 50 in steps of 5.\n", "\x1b[A\n", "/quit\n")):
        while shown.count("acceptance length") < answers or not shown.endswith("> "):
            shown += os.read(terminal, 4096).decode(errors="replace")
        os.write(terminal, typed.encode())
    assert talking.wait(20) == 0
    os.close(terminal)
    os.close(end)
    assert shown.count("> Count from 5 to 50 in steps of 5.") == 2 == shown.count("acceptance length")
    assert "^[[A" not in shown


def test_an_error_is_shown_and_the_talk_goes_on(server: Server) -> None:
    output = talk(server, f"{'word ' * 5000}\nCount from 20 to 60 in steps of 2.\n", "--temperature", "0")
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


CALLED = {"index": 0, "id": "c1", "type": "function", "function": {"name": "get_time", "arguments": ""}}
DELTAS: list[dict[str, Any]] = [
    {"reasoning": "Hm."},
    {"tool_calls": [CALLED]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"zone": "CET"}'}}]},
]


def test_calls_are_shown_and_get_what_is_typed(tmp_path: Path) -> None:
    """Over a stand-in: its first answer thinks and calls a tool, its second is text."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}), "application/json")

        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            deltas = DELTAS if len(asked) == 1 else [{"content": "It is noon."}]
            head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            chunks = [head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
            self._send(
                "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + "data: [DONE]\n\n", "text/event-stream"
            )

        def _send(self, text: str, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    file = tmp_path / "tools.json"
    file.write_text('{"name": "get_time"}')
    stand_in = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=stand_in.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{stand_in.server_port}"
    done = CliRunner().invoke(app, ["chat", "--url", url, "--tools", str(file)], input="When?\n12:00\n/quit\n")
    stand_in.shutdown()
    stand_in.server_close()
    assert done.exit_code == 0, done.output
    for shown in ("Hm.", 'get_time {"zone": "CET"}', "get_time returns>", "It is noon."):
        assert shown in done.output
    assert asked[0]["tools"] == [{"type": "function", "function": {"name": "get_time"}}]
    assert [one["role"] for one in asked[1]["messages"]] == ["user", "assistant", "tool"]
    assert asked[1]["messages"][2] == {"role": "tool", "tool_call_id": "c1", "content": "12:00"}


@pytest.mark.parametrize("text", ["get_time", "[5]", '["get_time"]'])
def test_a_file_that_holds_no_functions_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tools.json"
    file.write_text(text)
    with pytest.raises(AerieError, match=r"tools\.json"):
        read_tools(file)
