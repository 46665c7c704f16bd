"""Text and messages to token ids, and ids back to text. One per server; the tokenizer is the model's own."""

import asyncio
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from contracts.errors import BadRequest, ConfigError
from server.protocol import ChatMessage
from server.template import ChatTemplate, load_template

_INLINE_CHARACTERS = 8192
"""Prompts longer than this are tokenized in a thread, so that they do not hold up other requests' tokens."""


class Prompts:
    """Renders, encodes and decodes. Special tokens come from the template alone, which writes them out."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.tokenizer = tokenizer
        self._template = template

    async def of_messages(self, messages: list[ChatMessage], *, add_generation_prompt: bool = True) -> list[int]:
        """Raises BadRequest for content that is not text, and where the model has no chat template."""
        if self._template is None:
            raise BadRequest("this model has no chat template; use /v1/completions, or set server.chat_template")
        plain = [_plain(message, index) for index, message in enumerate(messages)]
        text = self._template.render(plain, add_generation_prompt=add_generation_prompt)
        return await self._encode(text, add_special_tokens=False)

    async def of_text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return await self._encode(text, add_special_tokens=add_special_tokens)

    def text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def token(self, token_id: int) -> str:
        """The text of one token by itself, special ones shown."""
        return str(self.tokenizer.decode([token_id], skip_special_tokens=False))

    async def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        def encode() -> list[int]:
            return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

        return encode() if len(text) <= _INLINE_CHARACTERS else await asyncio.to_thread(encode)


def load_prompts(folder: Path, template: str | None) -> Prompts:
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ConfigError(
            f"no tokenizer.json in {folder}; the server needs the model's fast tokenizer", param="model.path"
        )
    return Prompts(Tokenizer.from_file(str(path)), load_template(folder, template))


def _plain(message: ChatMessage, index: int) -> dict[str, Any]:
    if isinstance(message.content, list):
        for part in message.content:
            if part.type != "text" or part.text is None:
                raise BadRequest(
                    f"messages[{index}].content has a part of type {part.type!r}; only text is served",
                    param=f"messages[{index}].content",
                )
        content = "".join(part.text or "" for part in message.content)
    else:
        content = message.content or ""
    return {**(message.model_extra or {}), "role": message.role, "content": content}
