"""An OpenAI endpoint in the test's process: a real target in the engine behind a plain HTTP server.

A whole server takes seconds to start. This one can be told to fail, and to leave the ids out as some servers do.
"""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from aerie.contracts.config import load_config
from aerie.contracts.messages import Generate
from aerie.contracts.sampling import SamplingParams
from aerie.engine.lanes.inline import InlineLane
from aerie.probe.drive import drive
from aerie.server.text.tokenizer import Tokenizer
from aerie.spec.build import build_worker


class Endpoint:
    """`failing` requests are answered 503 first; `asked` counts all."""

    def __init__(self, target: Path, *, failing: int = 0, token_ids: bool = True) -> None:
        words = [f"model.path={target}", "spec.head=none", "engine.lane=inline", "engine.kv_tokens=4096"]
        self._config = load_config(None, [*words, "model.dtype=float32", "scheduler.max_running=2"])
        self._lane = InlineLane(build_worker(self._config))
        self._tokenizer = Tokenizer(target)
        self._one_at_a_time = threading.Lock()
        self._token_ids = token_ids
        self.failing, self.asked = failing, 0
        self.bodies: list[dict[str, Any]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, {"object": "list", "data": [{"id": "tiny", "object": "model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self._answer(*endpoint.answer(body))

            def _answer(self, status: int, value: dict[str, Any]) -> None:
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self._one_at_a_time:
            self.asked += 1
            self.bodies.append(body)
            if self.asked <= self.failing:
                return 503, {"error": {"message": "no room", "type": "overloaded_error"}}
            prompt = body.get("prompt") or asyncio.run(self._tokenizer.encode_chat(body["messages"], {}))
            sampling = SamplingParams(temperature=body["temperature"], max_tokens=body["max_tokens"], seed=body["seed"])
            request = Generate(id="one", prompt=prompt, sampling=sampling)
            found = drive(self._lane, self._config, [request], concurrency=1).answers[0]
        text = self._tokenizer.decode(found.tokens)
        said = {"text": text} if "prompt" in body else {"message": {"role": "assistant", "content": text}}
        choice: dict[str, Any] = {"index": 0, "finish_reason": found.finish, **said}
        answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "tiny", "choices": [choice]}
        if self._token_ids and body.get("return_token_ids"):
            choice["token_ids"] = found.tokens
            answer["prompt_token_ids"] = prompt
        return 200, answer

    def __enter__(self) -> "Endpoint":
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._tokenizer.close()
        self._lane.close()
