"""The model's tokenizer for the server: text and chats to ids, ids to text, without torch or transformers.

Made once per process; used by the routes and by `choice`. Long texts are encoded on a thread, so that no other request
waits for them.
"""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import tokenizers

from aerie.contracts.errors import BadRequest, ConfigError
from aerie.contracts.provenance import template_source, tokenizer_settings, tool_template_source
from aerie.contracts.server_section import ServerConfig
from aerie.server.text.context import context_exceeded
from aerie.server.text.control_tokens import MARK, ControlTokens
from aerie.server.text.detokenize import Detokenizer, Pieces
from aerie.server.text.template import ChatTemplate
from aerie.server.text.token_length import longest_token

INLINE_CHARACTERS = 4096
"""Texts up to this many characters are encoded on the event loop, which takes less than a millisecond."""

_T = TypeVar("_T")


class Tokenizer:
    """`tokenizer.json` and the chat template of a model's folder.

    `template_file` replaces the model's template; `typed_tokens` lets chat messages contain control tokens, which are
    otherwise plain text. Raises ConfigError on files that are missing or cannot be read.
    """

    def __init__(self, folder: Path, template_file: Path | None = None, *, typed_tokens: bool = False) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"no tokenizer.json in {folder}; Aerie reads fast tokenizers only", param="model.path")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception
            raise ConfigError(f"{path} cannot be read: {error}", param="model.path") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.pieces = Pieces(self._tokenizer)
        self._added = {token.content: id for id, token in self._tokenizer.get_added_tokens_decoder().items()}
        self.template_source = template_source(folder, template_file)
        self.tool_template_source = tool_template_source(folder, template_file) or self.template_source
        special = _special_tokens(tokenizer_settings(folder))
        self.template = _template(self.template_source, special)
        """Of chats without tools."""
        self.tool_template = (
            self.template
            if self.tool_template_source == self.template_source
            else _template(self.tool_template_source, special)
        )
        self._longest_token = longest_token(json.loads(self._tokenizer.to_str()))
        templates = (self.template, self.tool_template)
        self._control = None if typed_tokens or not any(templates) else ControlTokens(self._tokenizer)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tokenize")

    @classmethod
    def served(cls, folder: Path, settings: ServerConfig) -> "Tokenizer":
        """The tokenizer in `folder`, configured by `settings`."""
        template = None if settings.chat_template is None else Path(settings.chat_template)
        return cls(folder, template, typed_tokens=settings.special_tokens_in_content == "tokens")

    @property
    def vocabulary(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def as_json(self) -> str:
        """The tokenizer that was loaded, as text."""
        return self._tokenizer.to_str()

    def token_of(self, text: str) -> int | None:
        """The added token that is this text; None if there is none."""
        return self._added.get(text)

    def check_length(self, text: str, context: int | None, param: str) -> None:
        """Raises BadRequest for a text with more characters than `context` tokens can cover; None means no limit."""
        if context is not None and self._longest_token is not None and len(text) > context * self._longest_token:
            least = -(-len(text) // self._longest_token)
            given = f"your prompt has {len(text)} characters, which are at least {least} tokens"
            raise context_exceeded(context, given, "Please reduce the length of the prompt", param)

    def ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # Only the batch call lets other threads run meanwhile.
        found: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return found

    def chat_ids(
        self,
        messages: list[dict[str, Any]],
        variables: dict[str, Any],
        context: int | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> list[int]:
        """Ids of the rendered chat. `tools` are what the template shows of them. Raises BadRequest if the model has no
        template, the template rejects the messages, or `context` tokens cannot hold the chat.
        """
        template = self.tool_template if tools else self.template
        if template is None:
            raise BadRequest(
                "this model has no chat template; use /v1/completions, or set server.chat_template", param="messages"
            )
        if self._control is None:
            rendered = template.render(messages, variables, tools)
            self.check_length(rendered, context, "messages")
            return self.ids(rendered, add_special_tokens=False)
        try:
            mark = self._control.mark
            rendered = template.render(mark(messages), mark(variables), mark(tools))
        except BadRequest as refusal:
            raise BadRequest(self._control.unmark(refusal.message), param=refusal.param) from None
        self.check_length(self._control.unmark(rendered) if MARK in rendered else rendered, context, "messages")
        return self._control.ids(rendered)

    async def encode(self, text: str, *, add_special_tokens: bool, context: int | None = None) -> list[int]:
        """As `ids`, for the event loop. Raises BadRequest if `context` tokens cannot hold the text."""
        self.check_length(text, context, "prompt")
        return await self.off_loop(len(text), lambda: self.ids(text, add_special_tokens=add_special_tokens))

    async def encode_chat(
        self,
        messages: list[dict[str, Any]],
        variables: dict[str, Any],
        context: int | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> list[int]:
        """As `chat_ids`, for the event loop."""
        length = sum(len(str(message.get("content"))) + 16 for message in messages) + len(str(tools or ""))
        return await self.off_loop(length, lambda: self.chat_ids(messages, variables, context, tools))

    def decode(self, ids: list[int], *, skip_special: bool = True) -> str:
        text = self.pieces.start(skip_special=skip_special)
        return "".join([text.push(token) for token in ids]) + text.flush()

    def start_text(self, *, skip_special: bool = True, kept: frozenset[int] = frozenset()) -> Detokenizer:
        return self.pieces.start(skip_special=skip_special, kept=kept)

    def written(self, token: int) -> str:
        """A single token as logprobs show it; part of a character becomes U+FFFD."""
        return self.pieces.bytes_of(token).decode(errors="replace")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def off_loop(self, length: int, work: Callable[[], _T]) -> _T:
        """Returns the result of `work`; runs it on a thread if `length` (characters or tokens) is large."""
        if length <= INLINE_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _template(source: str | None, special_tokens: dict[str, str]) -> ChatTemplate | None:
    return None if source is None else ChatTemplate(source, special_tokens)


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and the like, which templates read by name; given as a string or as an added token."""
    named = {name: value for name, value in settings.items() if name.endswith("_token")}
    contents = {name: value["content"] if isinstance(value, dict) else value for name, value in named.items()}
    return {name: value for name, value in contents.items() if isinstance(value, str)}
