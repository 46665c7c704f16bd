"""A live server on a real socket, a scripted scheduler behind it, and a small tokenizer between."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import uvicorn
from openai import AsyncOpenAI
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models, pre_tokenizers, trainers

from aerie.contracts import wire
from aerie.contracts.config import Config, parse_config
from aerie.contracts.messages import Abort, Generate
from aerie.server.app import create_app
from aerie.server.dispatch.client import Engine
from aerie.server.run import _Server, _uvicorn_config, listen, url_of
from aerie.server.service import Service, build_service
from aerie.server.text.tokenizer import Tokenizer
from tests.patience import PATIENCE, come
from tests.server.fake_scheduler import LAST, VOCABULARY, FakeScheduler, Said, Script, saying

SPECIAL = ["<|bos|>", "<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role: ' + message['role']) }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
TEXTS = ["The quick brown fox, naïve café 日本語 🦅 jumps over the lazy dog.", "Hello world! Stop here, now.\n"] * 50
ANSWER = "Hello world! The quick fox 🦅 jumps."


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder as far as the server reads it."""
    fast = Fast(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    path = tmp_path_factory.mktemp("model")
    fast.save(str(path / "tokenizer.json"))
    settings = {"bos_token": "<|bos|>", "eos_token": {"content": "<|end|>"}, "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder)


@pytest.fixture(scope="session")
def channels_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that writes channels: their markers are tokens, and none of them ends the answer."""
    own = tmp_path_factory.mktemp("channels")
    fast = Fast.from_str((folder / "tokenizer.json").read_text().replace('"<|end|>"', '"<|eos|>"'))
    fast.add_special_tokens([f"<|{name}|>" for name in ("start", "end", "channel", "message", "constrain", "call")])
    fast.add_special_tokens(["<|return|>"])
    fast.save(str(own / "tokenizer.json"))
    (own / "tokenizer_config.json").write_text((folder / "tokenizer_config.json").read_text())
    return own


@dataclass
class Live:
    url: str
    service: Service
    fake: FakeScheduler
    tokenizer: Tokenizer

    def __post_init__(self) -> None:
        self.clients: list[AsyncOpenAI] = []

    def client(self, api_key: str = "x") -> AsyncOpenAI:
        self.clients.append(AsyncOpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0))
        return self.clients[-1]

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.ids(text, add_special_tokens=False)

    async def idle(self) -> None:
        """Waits until no places are taken and the scheduler, having heard all that was sent, has nothing to do."""
        await come(lambda: not self.service.admission.taken, "places are left over")
        self.service.engine._send(Abort(id=LAST))
        await come(lambda: self.fake.heard_last, "the scheduler hears nothing")
        await come(lambda: not self.fake.running, "the scheduler goes on with what nobody waits for")
        self.fake.heard_last = False
        assert self.service.admission.taken == 0


Start = Callable[..., contextlib.AbstractAsyncContextManager[Live]]


@pytest.fixture
def start(folder: Path, tokenizer: Tokenizer) -> Start:
    """A factory of live servers: `async with start(script, {"limits": {...}}) as live`."""

    @contextlib.asynccontextmanager
    async def started(
        script: Script | None = None, settings: dict[str, dict[str, object]] | None = None, *, ready: bool = True
    ) -> AsyncIterator[Live]:
        settings = settings or {}
        config = parse_config(settings | {"model": {"path": str(folder), "served_name": "demo"}})
        config = config.model_copy(update={"server": config.server.model_copy(update={"port": 0})})
        async with _served(config, tokenizer, script or answering(tokenizer), ready) as live:
            yield live

    return started


@contextlib.asynccontextmanager
async def _served(config: Config, tokenizer: Tokenizer, script: Script, ready: bool) -> AsyncIterator[Live]:
    address = wire.private_address()
    fake = FakeScheduler(address, script, ready=ready)
    fake.start()
    engine = Engine(address, fake.alive)
    service = build_service(config, tokenizer, engine)
    listener = listen(config.server)
    server: uvicorn.Server = _Server(_uvicorn_config(create_app(service), config))
    await engine.start()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    if ready:
        await asyncio.wait_for(engine.became_ready.wait(), PATIENCE)
    live = Live(url_of(listener), service, fake, tokenizer)
    try:
        yield live
    finally:
        for client in live.clients:
            await client.close()
        service.cut.set()
        server.should_exit = True
        await serving
        await engine.close()
        if service.tracing is not None:
            await asyncio.to_thread(service.tracing.close)
        fake.kill()
        listener.close()
        wire.remove_address(address)


def answering(tokenizer: Tokenizer, text: str = ANSWER, run: int = 3) -> Script:
    """`text`, a few tokens at a time, then the end token."""
    ids = [*tokenizer.ids(text, add_special_tokens=False), 1]
    return saying([ids[start : start + run] for start in range(0, len(ids), run)])


@pytest.fixture
def abbc(tokenizer: Tokenizer) -> Script:
    """Letters without end, in runs of two: ab bc ab bc ..."""
    a, b, c = (tokenizer.ids(letter, add_special_tokens=False)[0] for letter in "abc")
    return saying([[a, b], [b, c]])


def then_silent(runs: list[list[int]]) -> Script:
    """These runs, and then nothing more, however long its reader takes: only an abort ends it."""

    def script(request: Generate) -> Iterator[Said]:
        yield from runs
        yield from silent(request)

    return script


def text_then_silent(text: str) -> Callable[[Tokenizer], Script]:
    """The text in one run, and then nothing more; for services that are given their tokenizer."""
    return lambda tokenizer: then_silent([tokenizer.ids(text, add_special_tokens=False)])


def silent(request: Generate) -> Iterator[Said]:
    """A script that never says anything."""
    while True:
        yield None


@pytest.fixture
async def live(start: Start) -> AsyncIterator[Live]:
    async with start() as live:
        yield live


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session
