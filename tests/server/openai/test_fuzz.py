"""Whatever a body says, the answer is 200 or a 4xx in the one shape: never a 5xx. Over ASGI, without a socket."""

import asyncio
import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.contracts import wire
from aerie.contracts.config import parse_config
from aerie.server.app import create_app
from aerie.server.dispatch.client import Engine
from aerie.server.openai.bodies import ChatBody, CompletionBody
from aerie.server.openai.unsupported import UNSUPPORTED
from aerie.server.responses.bodies import ResponseBody
from aerie.server.service import build_service
from aerie.server.text.tokenizer import Tokenizer
from tests.patience import PATIENCE
from tests.server.conftest import answering
from tests.server.fake_scheduler import FakeScheduler

scalars = st.none() | st.booleans() | st.integers(-3, 70) | st.floats(-3, 70) | st.text(max_size=4) | st.just(2**70)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
likely: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.1, 1),
    "top_k": st.integers(-1, 50),
    "n": st.integers(1, 3),
    "max_tokens": st.integers(1, 40),
    "stop": st.text("aeo ", min_size=1, max_size=3) | st.lists(st.text("aeo ", min_size=1), max_size=3),
    "stream": st.booleans(),
    "logprobs": st.booleans() | st.integers(0, 3),
    "top_logprobs": st.integers(0, 3),
    "speculation": st.fixed_dictionaries({}, optional={"enabled": st.booleans(), "spans": st.booleans()}),
    "return_token_ids": st.booleans(),
    "input": st.text(max_size=5)
    | st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=5)})),
    "max_output_tokens": st.integers(1, 40),
    "tools": st.lists(st.fixed_dictionaries({"type": st.sampled_from(["function", "web_search"])}), max_size=2),
    "prompt": st.text(max_size=5)
    | st.lists(st.integers(0, 599), max_size=4)
    | st.lists(st.text(max_size=3), max_size=3),
}
BODIES = (ChatBody, CompletionBody, ResponseBody)
fields = sorted({*UNSUPPORTED}.union(*(body.model_fields for body in BODIES)) - {"messages", "model"})
messages = st.just([{"role": "user", "content": "hi"}]) | values
bodies = st.builds(
    lambda chosen, spoken: {"messages": spoken, "prompt": "x", "input": "x"} | chosen,
    st.lists(st.sampled_from(fields), max_size=5, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: likely.get(name, values) | values for name in names})
    ),
    messages,
)


def test_any_body_is_answered(folder: Path, tokenizer: Tokenizer) -> None:
    address = wire.private_address()
    fake = FakeScheduler(address, answering(tokenizer))
    fake.start()
    seen: set[int] = set()
    with asyncio.Runner() as runner:
        engine = Engine(address, fake.alive)

        async def begin() -> Any:
            await engine.start()
            await asyncio.wait_for(engine.became_ready.wait(), PATIENCE)
            return build_service(parse_config({"model": {"path": str(folder)}}), tokenizer, engine)

        service = runner.run(begin())
        app = create_app(service)

        @given(body=bodies, path=st.sampled_from(["/v1/chat/completions", "/v1/completions", "/v1/responses"]))
        @settings(max_examples=150)
        def ask(body: Any, path: str) -> None:
            if path == "/v1/responses":  # it refuses the others' fields
                body = {name: value for name, value in body.items() if name not in ("messages", "prompt")}
            status, text = runner.run(post(app, path, json.dumps(body, allow_nan=False).encode()))
            seen.add(status)
            if status == 200:
                assert b'"choices"' in text or b'"object":"response"' in text
                assert b'"error":{' not in text
            else:
                assert 400 <= status < 500
                assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}
            assert service.admission.taken == 0

        ask()
        runner.run(engine.close())
    fake.kill()
    wire.remove_address(address)
    assert {200, 400} <= seen


async def post(app: Any, path: str, body: bytes) -> tuple[int, bytes]:
    """One request in the terms of ASGI: the caller stays until it has its answer."""
    sent: list[dict[str, Any]] = []
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if unread:
            return unread.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    rest = {"http_version": "1.1", "scheme": "http", "headers": headers, "server": ("x", 1), "asgi": {"version": "3.0"}}
    await app(scope | rest, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])
