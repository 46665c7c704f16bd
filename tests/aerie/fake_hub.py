"""A hub on loopback that speaks as much of the protocol as huggingface_hub asks for. Used by test_hub."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" + "0" * 34
OTHER = "bea7ed" + "0" * 34
FILES = {
    "config.json": b'{"hidden_size": 4}',
    "model.safetensors": b"\x02\0\0\0\0\0\0\0{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "README.md": b"# A card",
    "modeling.py": b"raise SystemExit('code of a stranger')",
    "pytorch_model.bin": b"a pickle",
    "training_args.bin": b"a pickle",
}
REPOSITORIES = {
    "org/model": {"main": COMMIT, COMMIT: COMMIT, "v2": OTHER, OTHER: OTHER},
    "org/pickled": {"main": COMMIT, COMMIT: COMMIT},
    "org/gated": {"main": COMMIT},
}


class Hub:
    """`asked` holds the paths of all requests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[str] = []


@contextmanager
def running() -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.hub  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.server.hub.asked.append(self.path)  # type: ignore[attr-defined]
        found = re.match(r"/api/models/([\w-]+/[\w-]+)(?:/revision/([^/?]+))?(?:\?.*)?$", self.path)
        if found:
            self._describe(found[1], found[2] or "main")
            return
        found = re.match(r"/api/models/([\w-]+/[\w-]+)/tree/\w+(?:\?.*)?$", self.path)
        if found:
            files = [{"type": "file", "path": file, "size": len(FILES[file]), "oid": file} for file in _files(found[1])]
            self._send(json.dumps(files).encode(), {})
            return
        found = re.match(r"/([\w-]+/[\w-]+)/resolve/(\w+)/([\w.]+)$", self.path)
        if found:
            self._give(found[1], found[2], found[3])
            return
        self._fail(404, "EntryNotFound")

    def _describe(self, name: str, revision: str) -> None:
        revisions = REPOSITORIES.get(name)
        if revisions is None:
            self._fail(404, "RepoNotFound")
        elif revision not in revisions:
            self._fail(404, "RevisionNotFound")
        else:
            files = [{"rfilename": file} for file in _files(name)]
            reported = {"id": name, "modelId": name, "sha": revisions[revision], "siblings": files, "private": False}
            self._send(json.dumps(reported | {"tags": [], "downloads": 0, "likes": 0}).encode(), {})

    def _give(self, name: str, revision: str, file: str) -> None:
        if name == "org/gated":
            self._fail(403, "GatedRepo")
            return
        if file not in _files(name):
            self._fail(404, "EntryNotFound")
            return
        data = FILES[file]
        self._send(data, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": revision})

    def _send(self, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for key, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def _fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""


def _files(name: str) -> list[str]:
    return [file for file in FILES if name != "org/pickled" or file != "model.safetensors"]
