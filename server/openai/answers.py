"""The OpenAI shapes of answers: whole answers, chunks of a stream, usage. Plain data in, plain data out.

Used by the routes and by `chunks`. Each HTTP request has one `Answers`; the chat and completions dialects differ only
in a few places.
"""

import time
from dataclasses import dataclass
from typing import Any, ClassVar

from aerie.contracts.messages import DraftTree, Usage
from aerie.server.openai.assistant import delta_data, finish_reason, message_data
from aerie.server.openai.choice import Choice, Delta
from aerie.server.openai.chunks import ChunkEncoder
from aerie.server.openai.generation import Generation
from aerie.server.openai.logprobs import chat_logprobs, completion_logprobs
from aerie.server.telemetry.account import acceptance_length, total
from aerie.server.text.tokenizer import Tokenizer

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The parts of an answer that the caller asked for beyond its text."""

    logprobs: bool = False
    ranks: int = 0
    token_ids: bool = False
    spans: bool = False
    trees: bool = False
    usage: bool = False
    """Send a usage chunk at the end of the stream."""
    usage_always: bool = False
    """Include the usage so far in every chunk."""

    @property
    def every_step(self) -> bool:
        """Whether a step without new text also sends a chunk."""
        return self.logprobs or self.token_ids or self.usage_always or self.trees


class Answers:
    """The base of both dialects."""

    kind = ""
    chunk_kind = ""
    prefix = ""
    no_piece: ClassVar[Json] = {}
    """A choice's part of a chunk that adds nothing to it."""

    def __init__(
        self, *, id: str, model: str, fingerprint: str, wanted: Wanted, tokenizer: Tokenizer, prompts: list[list[int]]
    ) -> None:
        self.wanted = wanted
        self._tokenizer = tokenizer
        self._prompts = prompts
        """One list of token ids per choice."""
        self._head = {"id": f"{self.prefix}-{id}", "created": int(time.time()), "model": model}
        self._fingerprint = fingerprint

    def whole(self, answers: list[tuple[Choice, Delta]], usage: list[Usage]) -> Json:
        choices = [self._choice(choice, delta, self._message(delta)) for choice, delta in answers]
        return {
            **self._head,
            "object": self.kind,
            "system_fingerprint": self._fingerprint,
            "choices": choices,
            "usage": usage_data(usage, [choice for choice, _ in answers], self._prompts),
        }

    def encoder(self, generation: Generation) -> ChunkEncoder:
        return ChunkEncoder(self, generation)

    def chunks(self, choice: Choice, delta: Delta, *, finish: bool, so_far: list[Choice]) -> list[Json]:
        """What a step added: one chunk for each piece of the answer, the first with the step's tokens.

        `finish` adds the choice's finish_reason to the last; `so_far` holds all choices, for the running count.
        """
        contents = self._pieces(delta)
        if not contents and (finish or (delta.ids and self.wanted.every_step)):
            contents = [self.no_piece]
        parts = [self._choice(choice, delta, content) for content in contents[:1]]
        parts += [self._choice(choice, Delta(), content) for content in contents[1:]]
        for part in parts if not finish else parts[:-1]:
            part["finish_reason"] = part["stop_reason"] = None
        count = self._count(sum(one.tokens for one in so_far))
        return [self._frame([part], count) for part in parts]

    def opening(self, choice: Choice) -> Json | None:
        """The chunk that precedes a choice's text; None if the dialect has none."""
        return None

    def usage_chunk(self, usage: list[Usage], choices: list[Choice]) -> Json:
        return self._frame([], usage_data(usage, choices, self._prompts))

    def _frame(self, choices: list[Json], usage: Json | None) -> Json:
        frame = {**self._head, "object": self.chunk_kind, "system_fingerprint": self._fingerprint, "choices": choices}
        if self.wanted.usage or self.wanted.usage_always:
            frame["usage"] = usage
        return frame

    def _choice(self, choice: Choice, delta: Delta, content: Json) -> Json:
        part = {
            "index": choice.index,
            **content,
            "logprobs": self._logprobs(delta) if self.wanted.logprobs else None,
            "finish_reason": self._finish_reason(choice),
            "stop_reason": choice.stop_reason,
        }
        if self.wanted.token_ids:
            part |= {"token_ids": delta.ids, "drafted": delta.drafted}
        if self.wanted.spans:
            part["spans"] = delta.spans
        if self.wanted.trees:
            part["trees"] = [tree_data(tree, ids, self._tokenizer) for tree, ids in delta.trees]
        return part

    def _finish_reason(self, choice: Choice) -> str | None:
        return choice.finish_reason

    def _count(self, completion: int) -> Json | None:
        """The running count if every chunk carries one, else None."""
        if not self.wanted.usage_always:
            return None
        prompt = _prompt_tokens(self._prompts)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _message(self, delta: Delta) -> Json:
        raise NotImplementedError

    def _pieces(self, delta: Delta) -> list[Json]:
        """What a step added to the answer, in order."""
        raise NotImplementedError

    def _logprobs(self, delta: Delta) -> Json:
        raise NotImplementedError


class ChatAnswers(Answers):
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl"
    no_piece: ClassVar[Json] = {"delta": {}}

    def whole(self, answers: list[tuple[Choice, Delta]], usage: list[Usage]) -> Json:
        return super().whole(answers, usage) | self._prompt_ids()

    def opening(self, choice: Choice) -> Json:
        part = {"index": choice.index, "delta": {"role": "assistant", "content": ""}}
        frame = self._frame([part | {"logprobs": None, "finish_reason": None}], self._count(0))
        return frame | (self._prompt_ids() if choice.index == 0 else {})

    def _prompt_ids(self) -> Json:
        return {"prompt_token_ids": self._prompts[0]} if self.wanted.token_ids else {}

    def _message(self, delta: Delta) -> Json:
        return {"message": message_data(delta.events)}

    def _pieces(self, delta: Delta) -> list[Json]:
        return [{"delta": data} for event in delta.events if (data := delta_data(event)) is not None]

    def _finish_reason(self, choice: Choice) -> str | None:
        return finish_reason(choice.finish_reason, choice.calls)

    def _logprobs(self, delta: Delta) -> Json:
        return chat_logprobs(self._tokenizer, delta, self.wanted.ranks)


class CompletionAnswers(Answers):
    kind = "text_completion"
    chunk_kind = "text_completion"
    prefix = "cmpl"
    no_piece: ClassVar[Json] = {"text": ""}

    def whole(self, answers: list[tuple[Choice, Delta]], usage: list[Usage]) -> Json:
        answer = super().whole(answers, usage)
        if self.wanted.token_ids:
            for part in answer["choices"]:
                part["prompt_token_ids"] = self._prompts[part["index"]]
        return answer

    def _message(self, delta: Delta) -> Json:
        return {"text": delta.text}

    def _pieces(self, delta: Delta) -> list[Json]:
        return [{"text": delta.text}] if delta.text else []

    def _logprobs(self, delta: Delta) -> Json:
        return completion_logprobs(self._tokenizer, delta, self.wanted.ranks)


def tree_data(tree: DraftTree, accepted: list[int], tokenizer: Tokenizer) -> Json:
    """The nodes with their texts, and the accepted path as node indices without the root."""
    path, node = [], 0
    for token in accepted:
        node = next(
            child
            for child in range(node + 1, len(tree.parents))
            if tree.parents[child] == node and tree.token_ids[child] == token
        )
        path.append(node)
    return {
        "token_ids": tree.token_ids,
        "texts": [tokenizer.written(token) for token in tree.token_ids],
        "parents": tree.parents,
        "accepted": path,
    }


def usage_data(usage: list[Usage], choices: list[Choice], prompts: list[list[int]]) -> Json:
    """OpenAI's usage summed over all choices, and Aerie's statistics of their speculation."""
    prompt, completion = _prompt_tokens(prompts), sum(choice.tokens for choice in choices)
    together = total(usage)
    length = acceptance_length(together)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": _cached_tokens(usage, prompts)},
        "completion_tokens_details": {"reasoning_tokens": sum(choice.reasoning_tokens for choice in choices)},
        "speculation": {
            "steps": together.steps,
            "drafted": together.drafted,
            "accepted": together.accepted,
            "acceptance_length": None if length is None else round(length, 4),
            "accepted_per_position": together.accepted_per_position,
            "forbidden": together.forbidden,
        },
    }


def _firsts(prompts: list[list[int]]) -> list[int]:
    """Indices of each prompt's first choice. The choices of one prompt share one list object."""
    return [place for place in range(len(prompts)) if place == 0 or prompts[place] is not prompts[place - 1]]


def _prompt_tokens(prompts: list[list[int]]) -> int:
    """Counts each prompt once, however many choices it has."""
    return sum(len(prompts[place]) for place in _firsts(prompts))


def _cached_tokens(usage: list[Usage], prompts: list[list[int]]) -> int:
    return sum(usage[place].cached_tokens for place in _firsts(prompts))
