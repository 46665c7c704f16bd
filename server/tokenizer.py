"""The model's tokenizer as the server needs it: text and chats to ids, ids to text, without torch or transformers.

Made once by the composition of the process; used by the routes and by `choice`. Long texts are encoded on a thread, so
that no other request waits for them.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import tokenizers

from contracts.errors import BadRequest, ConfigError
from contracts.provenance import template_source, tokenizer_settings
from server.detokenize import Detokenizer, Pieces
from server.template import ChatTemplate

INLINE_CHARACTERS = 4096
"""Texts up to this length are encoded on the event loop, which takes less than a millisecond."""

_T = TypeVar("_T")


class Tokenizer:
    """`tokenizer.json` and the chat template of a model's folder.

    `template_file` replaces the model's template. Raises ConfigError on files that are missing or cannot be read.
    """

    def __init__(self, folder: Path, template_file: Path | None = None) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"no tokenizer.json in {folder}; Aerie reads fast tokenizers only", param="model.path")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception
            raise ConfigError(f"{path} cannot be read: {error}", param="model.path") from None
        self.pieces = Pieces(self._tokenizer)
        self.template = _load_template(folder, template_file)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tokenize")

    @property
    def vocabulary(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # The batch call is the one that lets other threads run meanwhile.
        found: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return found

    def chat_ids(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> list[int]:
        """Ids of the rendered chat. Raises BadRequest where the model has no template or the template refuses."""
        if self.template is None:
            raise BadRequest(
                "this model has no chat template; use /v1/completions, or set server.chat_template", param="messages"
            )
        return self.ids(self.template.render(messages, variables), add_special_tokens=False)

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """As `ids`, for the event loop."""
        return await self.off_loop(len(text), lambda: self.ids(text, add_special_tokens=add_special_tokens))

    async def encode_chat(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> list[int]:
        """As `chat_ids`, for the event loop."""
        length = sum(len(str(message.get("content"))) + 16 for message in messages)
        return await self.off_loop(length, lambda: self.chat_ids(messages, variables))

    def decode(self, ids: list[int], *, skip_special: bool = True) -> str:
        text = self.pieces.start(skip_special=skip_special)
        return "".join([text.push(token) for token in ids]) + text.flush()

    def start_text(self, *, skip_special: bool = True) -> Detokenizer:
        return self.pieces.start(skip_special=skip_special)

    def written(self, token: int) -> str:
        """A token on its own as logprobs show it; a piece of a character becomes U+FFFD."""
        return self.pieces.bytes_of(token).decode(errors="replace")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def off_loop(self, length: int, work: Callable[[], _T]) -> _T:
        """What `work` returns, done on a thread where there is much of it: `length` characters or tokens."""
        if length <= INLINE_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _load_template(folder: Path, template_file: Path | None) -> ChatTemplate | None:
    source = template_source(folder, template_file)
    return None if source is None else ChatTemplate(source, _special_tokens(tokenizer_settings(folder)))


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and the like, which templates read by name; written plainly or as an added token."""
    named = {name: value for name, value in settings.items() if name.endswith("_token")}
    contents = {name: value["content"] if isinstance(value, dict) else value for name, value in named.items()}
    return {name: value for name, value in contents.items() if isinstance(value, str)}
