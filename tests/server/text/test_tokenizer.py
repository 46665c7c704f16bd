"""Text to ids and back, without holding up the event loop."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from tokenizers import processors

from aerie.server.text.tokenizer import Tokenizer
from tests.house import HOME
from tests.patience import PATIENCE, quickest_of


async def test_ids_equal_the_librarys(tokenizer: Tokenizer) -> None:
    text = "The quick 🦅 <|user|>\n"
    ids = await tokenizer.encode(text, add_special_tokens=True)
    assert ids == tokenizer._tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special=False) == text
    assert tokenizer.decode(ids) == "The quick 🦅 \n"
    assert [tokenizer.written(token) for token in ids if token < 6] == ["<|user|>"]


async def test_special_tokens_are_added_on_demand(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", 0)]
    )
    assert (await tokenizer.encode("a", add_special_tokens=True))[0] == 0
    assert (await tokenizer.encode("a", add_special_tokens=False))[0] != 0


async def test_long_texts_leave_the_loop_free(tokenizer: Tokenizer) -> None:
    text = "The quick brown fox " * 100_000

    async def longest_pause() -> float:
        """As a share of the work."""
        pauses = []
        work = asyncio.create_task(tokenizer.encode(text, add_special_tokens=False))
        started = time.monotonic()
        while not work.done():
            before = time.monotonic()
            await asyncio.sleep(0)
            pauses.append(time.monotonic() - before)
        share = max(pauses) / (time.monotonic() - started)
        assert tokenizer.decode(await work) == text
        return share

    assert await quickest_of(longest_pause, 0.5) < 0.5


def test_serving_needs_neither_torch_nor_transformers() -> None:
    heavy = ("torch", "transformers", "scheduler", "engine")
    code = f"import sys, aerie.server.run; print([name for name in {heavy} if name in sys.modules])"
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=HOME, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert said.stdout.strip() == "[]"
