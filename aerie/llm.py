"""Offline inference as in vLLM: `LLM(model).generate(prompts, SamplingParams(...))`, on the server's scheduler."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from aerie.contracts import sampling
from aerie.contracts.errors import AerieError
from aerie.contracts.messages import Abort, Failed, Finished, Generate, Tokens, Usage
from aerie.keywords import overrides_of_keywords
from aerie.lane import make_lane
from aerie.resolve import resolve_config, with_local_model
from aerie.scheduler import Scheduler
from aerie.server.dispatch.mailbox import Run
from aerie.server.openai.choice import Choice, TextRules
from aerie.server.text.bad_words import banned_ids
from aerie.server.text.tokenizer import Tokenizer

Prompt = str | list[int]
Messages = list[dict[str, Any]]
_Prompt = tuple[str | None, list[int]]
"""A prompt's text, if given as text, and its token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(sampling.DistributionParams):
    """Named as in vLLM. `seed` None draws a random seed; `top_k` -1 or 0 is off; the text excludes `stop` strings."""

    n: int = 1
    max_tokens: int = 16
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    ignore_eos: bool = False
    seed: int | None = None


@dataclass(slots=True)
class Completion:
    """One answer, the `index`-th of its prompt."""

    index: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """The stop string or stop id that ended the answer; None if the model ended it."""
    usage: Usage | None = None


@dataclass(slots=True)
class RequestResult:
    """One prompt with its `n` answers. `prompt` is its text (for a chat, as rendered); None if given as token ids."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[Completion]

    @property
    def usage(self) -> Usage | None:
        """Usage of the first answer."""
        return self.outputs[0].usage


class LLM:
    """A loaded model. Close it, or use it in a `with`, to end its lane."""

    def __init__(self, model: str, **overrides: Any) -> None:
        """`model`: a config file, a folder or a hub id. Settings have `__` for the dot, as in `spec__depth=5`. Flags of
        docs/coming-from.md work too, as in `max_model_len=4096`. Raises ConfigError.
        """
        self.config = with_local_model(resolve_config(model, overrides_of_keywords(overrides)))
        self.tokenizer = Tokenizer.served(Path(self.config.model.path), self.config.server)
        self._lane = make_lane(self.config)
        self._served = 0
        self._closed = False

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestResult]:
        """Answers every prompt, given as text or token ids, with one SamplingParams for all or one for each.

        `use_tqdm` (vLLM's name) shows the progress in a terminal.
        """
        single = isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], int))
        given: list[Any] = [prompts] if single else list(prompts)
        read = self.tokenizer.ids
        asked: list[_Prompt] = [
            (one, read(one, add_special_tokens=True)) if isinstance(one, str) else (None, list(one)) for one in given
        ]
        return self._run(asked, _one_for_each(sampling_params, len(asked)), use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestResult]:
        """Answers one conversation or several, rendered by the model's chat template."""
        several: list[Any] = [messages] if messages and isinstance(messages[0], dict) else list(messages)
        ids = [self.tokenizer.chat_ids(one, {}) for one in several]
        asked: list[_Prompt] = [(self.tokenizer.decode(one, skip_special=False), one) for one in ids]
        return self._run(asked, _one_for_each(sampling_params, len(asked)), use_tqdm)

    def close(self) -> None:
        """Ends the lane. Later requests raise an error."""
        self._closed = True
        self._lane.close()
        self.tokenizer.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, prompts: list[_Prompt], params: list[SamplingParams], show: bool) -> list[RequestResult]:
        if self._closed:
            raise AerieError("this LLM is closed; make another, or ask before the end of its `with`")
        results = [RequestResult(text, ids, []) for text, ids in prompts]
        answers: dict[str, _Answer] = {}
        requests: list[Generate] = []
        for result, wanted in zip(results, params, strict=True):
            rules = self._rules(wanted)
            for choice in range(wanted.n):
                requests.append(self._request(result.prompt_token_ids, wanted, choice))
                answer = _Answer(Completion(choice), Choice(choice, rules, self.tokenizer))
                answers[requests[-1].id] = answer
                result.outputs.append(answer.said)
        scheduling = self.config.scheduler.model_copy(update={"max_waiting": len(requests)})
        scheduler = Scheduler(self._lane, self.config.model_copy(update={"scheduler": scheduling}))
        for request in requests:
            scheduler.submit(request)
        try:
            console = Console(stderr=True)
            with Progress(console=console, disable=not (show and console.is_terminal), transient=True) as progress:
                task = progress.add_task("generating", total=len(requests))
                while not scheduler.idle:
                    for reply in scheduler.iterate():
                        if isinstance(reply, Tokens | Finished | Failed) and answers[reply.id].take(reply):
                            progress.advance(task)
                            scheduler.submit(Abort(id=reply.id))
        finally:  # removes these requests from the lane, after an error or a Ctrl-C too
            for id in answers:
                scheduler.submit(Abort(id=id))
            while not scheduler.idle:
                scheduler.iterate()
        return results

    def _request(self, prompt: list[int], wanted: SamplingParams, choice: int) -> Generate:
        self._served += 1
        params = sampling.SamplingParams(
            **sampling.distribution_of(wanted),
            max_tokens=min(wanted.max_tokens, max(1, self._lane.capacity.max_length - len(prompt))),
            min_tokens=wanted.min_tokens,
            stop_token_ids=tuple(wanted.stop_token_ids),
            logit_bias=dict(wanted.logit_bias or {}),
            allowed_token_ids=None if wanted.allowed_token_ids is None else tuple(wanted.allowed_token_ids),
            banned_token_ids=banned_ids(wanted.bad_words, self.tokenizer),
            ignore_eos=wanted.ignore_eos,
            seed=secrets.randbits(63) if wanted.seed is None else wanted.seed,
        )
        limits = self.config.limits
        sampling.check_sampling(
            params, temperature_max=limits.temperature_max, vocabulary=self._lane.capacity.vocabulary
        )
        return Generate(id=f"offline-{self._served}", prompt=prompt, sampling=params, choice=choice)

    def _rules(self, wanted: SamplingParams) -> TextRules:
        stops = (wanted.stop,) if isinstance(wanted.stop, str) else tuple(wanted.stop)
        if "" in stops or wanted.n < 1:
            raise AerieError(f"stop is {wanted.stop!r} and n is {wanted.n}; no stop may be empty, n must be at least 1")
        ends = frozenset(() if wanted.ignore_eos else self._lane.capacity.end_ids)
        return TextRules(
            stops=stops,
            stop_ids=frozenset(wanted.stop_token_ids) | ends,
            end_ids=ends,
            include_stop=wanted.include_stop_str_in_output,
            min_tokens=wanted.min_tokens,
            skip_special=wanted.skip_special_tokens,
        )


@dataclass(slots=True)
class _Answer:
    said: Completion
    choice: Choice

    def take(self, reply: Tokens | Finished | Failed) -> bool:
        """Returns True once, when the answer has ended by its text or by the scheduler. Raises AerieError."""
        if isinstance(reply, Failed):
            raise AerieError(reply.message, code=reply.code)
        ended, said = self.choice.ended, self.said
        if isinstance(reply, Finished):
            delta = self.choice.finish(reply)
            said.usage = reply.usage
        else:
            run = Run()
            run.add(reply)
            delta = self.choice.take(run)
        said.text += delta.text
        said.token_ids += delta.ids
        said.finish_reason, said.stop_reason = self.choice.finish_reason, self.choice.stop_reason
        return self.choice.ended and not ended


def _one_for_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise AerieError(f"{len(params)} sampling parameters for {count} prompts; give one for each, or one for all")
    return list(params)
