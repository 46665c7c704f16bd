"""`transformers`' generate behind OpenAI's streamed chat completions: the peer that everybody has.

    python scripts/peers/transformers_server.py models/demo/target --port 8001 --threads 2

Started by configs/sweep/peers.yaml. Requests that wait are generated together, up to --max-batch of them, with left
padding; those that come meanwhile wait for the next batch, since generate takes nobody in on the way. One thread
generates; each step's tokens cross to the event loop as they come, so a client sees generate's own times.
"""

import argparse
import asyncio
import json
import queue
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from tokenizers.decoders import DecodeStream
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria
from transformers.generation.configuration_utils import CompileConfig
from transformers.generation.streamers import BaseStreamer

GRAIN = 64
"""With --compile, prompts and limits are padded to multiples of it and batches to powers of two. This gives few shapes;
those of short prompts are compiled before the first request.
"""


@dataclass(eq=False)
class Asked:
    """A waiting or running request. `tell` takes token ids on the event loop, and None at the end."""

    ids: list[int]
    limit: int
    temperature: float
    ends: bool
    """Whether the end token ends it."""
    tell: Callable[[int | None], None]
    made: int = field(default=0)

    @property
    def alike(self) -> tuple[float, bool]:
        """What the requests of one batch must have in common."""
        return self.temperature, self.ends


class Rows(BaseStreamer, StoppingCriteria):
    """Passes each row its tokens, and ends a row at its own limit. Rows past the last request are padding."""

    def __init__(self, asked: list[Asked], end: int) -> None:
        self._asked = asked
        self._end = end
        self._prompt = True
        self._done = [False] * len(asked)

    def put(self, value: torch.Tensor) -> None:
        if self._prompt:
            self._prompt = False
            return
        for row, (one, token) in enumerate(zip(self._asked, value.tolist(), strict=False)):
            if self._done[row]:
                continue
            one.made += 1
            one.tell(token)
            self._done[row] = one.made >= one.limit or (one.ends and token == self._end)
            if self._done[row]:
                one.tell(None)

    def end(self) -> None:
        pass

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        rest = input_ids.shape[0] - len(self._done)
        return torch.tensor(self._done + [True] * rest)


class Generator:
    """The model and the thread that runs it."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(given.model)
        self._model: Any = AutoModelForCausalLM.from_pretrained(given.model, dtype=getattr(torch, given.dtype)).eval()
        self._compile = given.compile
        self._most = given.max_batch
        self._waiting: queue.Queue[Asked] = queue.Queue()
        if given.compile:
            self._warm_up()
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, asked: Asked) -> None:
        self._waiting.put(asked)

    def _run(self) -> None:
        held: Asked | None = None
        while True:
            batch = [held or self._waiting.get()]
            held = None
            while len(batch) < self._most and held is None:
                try:
                    one = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if one.alike == batch[0].alike:
                    batch.append(one)
                else:
                    held = one
            self._generate(batch)

    @torch.inference_mode()
    def _generate(self, batch: list[Asked]) -> None:
        ids, mask = self._padded(batch)
        rows = Rows(batch, self.tokenizer.eos_token_id)
        temperature, ends = batch[0].alike
        options: dict[str, Any] = {"do_sample": temperature > 0}
        if temperature > 0:
            options["temperature"] = temperature
        if self._compile:
            config = CompileConfig()
            config._compile_all_devices = True  # without it generate compiles only on GPUs
            options |= {"cache_implementation": "static", "compile_config": config}
        self._model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=self._padded_to_grain(max(one.limit for one in batch)),
            eos_token_id=self.tokenizer.eos_token_id if ends else [],
            pad_token_id=self.tokenizer.pad_token_id,
            streamer=rows,
            stopping_criteria=[rows],
            **options,
        )

    def _padded(self, batch: list[Asked]) -> tuple[torch.Tensor, torch.Tensor]:
        rows, columns = len(batch), self._padded_to_grain(max(len(one.ids) for one in batch))
        if self._compile:
            rows = 1 << (rows - 1).bit_length()
        ids = torch.full((rows, columns), self.tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        mask[:, -1] = 1
        for row, one in enumerate(batch):
            ids[row, columns - len(one.ids) :] = torch.tensor(one.ids)
            mask[row, columns - len(one.ids) :] = 1
        return ids, mask

    def _padded_to_grain(self, count: int) -> int:
        return -(-count // GRAIN) * GRAIN if self._compile else count

    def _warm_up(self) -> None:
        rows = 1
        while rows <= self._most:
            self._generate([Asked([0], 4, 0.0, False, lambda token: None) for _ in range(rows)])
            rows *= 2


def application(generator: Generator, name: str) -> FastAPI:
    app = FastAPI()

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model"}]}

    @app.post("/v1/chat/completions")
    async def chat(body: dict[str, Any]) -> StreamingResponse:
        if not body.get("stream"):
            raise HTTPException(400, "only streamed answers are given; set stream to true")
        text = generator.tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
        ids = generator.tokenizer(text, add_special_tokens=False)["input_ids"]
        chosen: asyncio.Queue[int | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        asked = Asked(
            ids,
            body.get("max_tokens") or 64,
            float(body.get("temperature") or 0),
            not body.get("ignore_eos", False),
            lambda token: loop.call_soon_threadsafe(chosen.put_nowait, token) and None,
        )
        generator.ask(asked)
        return StreamingResponse(_events(generator, asked, chosen), media_type="text/event-stream")

    return app


async def _events(generator: Generator, asked: Asked, chosen: "asyncio.Queue[int | None]") -> AsyncIterator[bytes]:
    text = DecodeStream(skip_special_tokens=True)
    yield _event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    while (token := await chosen.get()) is not None:
        if piece := text.step(generator.tokenizer.backend_tokenizer, token):
            yield _event({"choices": [{"index": 0, "delta": {"content": piece}}]})
    reason = "length" if asked.made >= asked.limit else "stop"
    yield _event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    yield _event({"choices": [], "usage": {"prompt_tokens": len(asked.ids), "completion_tokens": asked.made}})
    yield b"data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of the checkpoint")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--max-batch", type=int, default=16, help="requests that are generated together")
    parser.add_argument("--compile", action="store_true", help="torch.compile and a static cache")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_num_interop_threads(1)
    app = application(Generator(given), given.model.rstrip("/").rpartition("/")[2])
    uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
