"""Renders answered conversations to token ids with the answers marked: the head's training data.

Prompt and answer ids that the endpoint returned are used as they are: nothing is closer to serving. Otherwise the mask
comes from render boundaries: the template renders the conversation up to a turn, ready for the answer, and again with
the answer; the difference is the answer. A template that changes earlier turns (for thinking models it drops the
reasoning) makes each answered turn a separate document, as it was when generated.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from transformers import AutoTokenizer

from aerie.contracts.errors import AerieError
from aerie.contracts.provenance import template_source

Turns = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Document:
    """`answer` marks each id that the target generated, the end token included."""

    ids: list[int]
    answer: list[bool]

    def cut(self, longest: int) -> "Document":
        return Document(self.ids[:longest], self.answer[:longest])


class ChatRenderer:
    """The served chat template and tokenizer of a target."""

    def __init__(self, folder: Path, template: Path | None, end_ids: tuple[int, ...]) -> None:
        self.source = template_source(folder, template)
        if self.source is None:
            raise AerieError(f"{folder} has no chat template; give one with template: FILE")
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._end_ids = frozenset(end_ids)
        self._end = self._closing()

    def documents(self, turns: Turns) -> list[Document]:
        """One document for the whole conversation if its renderings extend each other, else one per answer.

        Raises ValueError if the template rejects the conversation.
        """
        answered = [index for index, turn in enumerate(turns) if turn["role"] == "assistant"]
        single = [self._document(turns, index) for index in answered]
        return [_joined(single)] if _extend_each_other(single) else single

    def prompt(self, turns: Turns) -> list[int]:
        """The ids up to the start of the answer."""
        return self._render(turns, ready=True)

    def template_ids(self) -> set[int]:
        """Every id that the template itself writes, in an empty conversation."""
        empty = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
        return {*self._render(empty, ready=False), *self.prompt(empty[:1])}

    def _document(self, turns: Turns, index: int) -> Document:
        """The turn `index` as the answer to the turns before it."""
        turn = turns[index]
        if "token_ids" in turn:
            prompt, answer = turn["prompt_token_ids"], turn["token_ids"]
            if turn.get("finish_reason") == "stop" and answer[-1] not in self._end_ids:  # some endpoints omit it
                answer = [*answer, *self._end]
            return Document([*prompt, *answer], [False] * len(prompt) + [True] * len(answer))
        prompt = self.prompt(turns[:index])
        whole = self._render(turns[: index + 1], ready=False)
        if whole[: len(prompt)] != prompt or not self._thought_kept(turn, whole[len(prompt) :]):
            whole = [*prompt, *self._encode(_said(turn)), *self._end]
        answer = self._until_end(whole[len(prompt) :], turn)
        return Document([*prompt, *answer], [False] * len(prompt) + [True] * len(answer))

    def _closing(self) -> list[int]:
        """The end token with which the template closes an answer, since a model may have several. Empty if there is
        none.
        """
        asked = [{"role": "user", "content": ""}]
        try:
            closed = self._render([*asked, {"role": "assistant", "content": ""}], ready=False)[
                len(self.prompt(asked)) :
            ]
        except ValueError:  # a template may reject empty turns
            closed = sorted(self._end_ids)
        return next(([token] for token in closed if token in self._end_ids), [])

    def _thought_kept(self, turn: dict[str, Any], answer: list[int]) -> bool:
        thought = turn.get("reasoning_content")
        return not thought or thought.strip() in self.tokenizer.decode(answer, skip_special_tokens=False)

    def _until_end(self, answer: list[int], turn: dict[str, Any]) -> list[int]:
        """The answer up to its end token: the target never generated what the template adds. A truncated answer has
        none.
        """
        end = next((at for at, token in enumerate(answer) if token in self._end_ids), len(answer))
        return answer[: end + (turn.get("finish_reason", "stop") == "stop")]

    def _render(self, turns: Turns, *, ready: bool) -> list[int]:
        messages: Any = [
            {key: turn[key] for key in ("role", "content", "reasoning_content") if key in turn} for turn in turns
        ]
        try:
            text: Any = self.tokenizer.apply_chat_template(
                messages, chat_template=self.source, tokenize=False, add_generation_prompt=ready
            )
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template refused it: {error}") from None
        return self._encode(str(text))

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))


def _said(turn: dict[str, Any]) -> str:
    thought = turn.get("reasoning_content")
    return f"<think>\n{thought}\n</think>\n\n{turn['content']}" if thought else str(turn["content"])


def _extend_each_other(documents: list[Document]) -> bool:
    return all(later.ids[: len(earlier.ids)] == earlier.ids for earlier, later in itertools.pairwise(documents))


def _joined(documents: list[Document]) -> Document:
    """The last document, with the answers of all."""
    answer = list(documents[-1].answer)
    for document in documents:
        answer[: len(document.answer)] = [a or b for a, b in zip(document.answer, answer, strict=False)]
    return Document(documents[-1].ids, answer)
