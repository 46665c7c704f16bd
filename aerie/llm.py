"""Offline use in vLLM's manner: `LLM(model).generate(prompts, SamplingParams(...))`, on the scheduler of the server."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.progress import Progress

from aerie.lane import make_lane
from aerie.resolve import resolve_config, with_local_model
from contracts import sampling
from contracts.errors import AerieError
from contracts.messages import Failed, Finished, Generate, Tokens, Usage
from scheduler import Scheduler
from server.tokenizer import Tokenizer

Prompt = str | list[int]
Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """vLLM's names. `seed` None draws one; `top_k` -1 or 0 is off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    seed: int | None = None


@dataclass(slots=True)
class Completion:
    """One answer."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None


@dataclass(slots=True)
class RequestResult:
    """One prompt with its answers (always one)."""

    prompt_token_ids: list[int]
    outputs: list[Completion]
    usage: Usage | None = None


class LLM:
    """A loaded model. Close it, or use it in a `with`, to end its lane."""

    def __init__(self, model: str, **overrides: Any) -> None:
        """`model`: a config file, a folder or a hub id. Overrides have `__` for the dot, as in `spec__depth=5`."""
        settings = [f"{key.replace('__', '.')}={value}" for key, value in overrides.items()]
        self.config = with_local_model(resolve_config(model, settings))
        template = self.config.server.chat_template
        self.tokenizer = Tokenizer(Path(self.config.model.path), None if template is None else Path(template))
        self._lane = make_lane(self.config)
        self._served = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestResult]:
        """Answers every prompt, text or token ids; one SamplingParams for all or one for each."""
        single = isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], int))
        given: list[Any] = [prompts] if single else list(prompts)
        ids = [self._encode(prompt) if isinstance(prompt, str) else list(prompt) for prompt in given]
        return self._run(ids, _one_for_each(sampling_params, len(ids)), use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestResult]:
        """Answers one conversation or several, through the model's chat template."""
        several: list[Any] = [messages] if messages and isinstance(messages[0], dict) else list(messages)
        ids = [asyncio.run(self.tokenizer.encode_chat(one, {})) for one in several]
        return self._run(ids, _one_for_each(sampling_params, len(ids)), use_tqdm)

    def close(self) -> None:
        self._lane.close()
        self.tokenizer.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _encode(self, text: str) -> list[int]:
        return asyncio.run(self.tokenizer.encode(text, add_special_tokens=True))

    def _run(self, prompts: list[list[int]], params: list[SamplingParams], show: bool) -> list[RequestResult]:
        places = len(prompts)
        scheduling = self.config.scheduler.model_copy(update={"max_waiting": places})
        scheduler = Scheduler(self._lane, self.config.model_copy(update={"scheduler": scheduling}))
        results: dict[str, RequestResult] = {}
        for prompt, wanted in zip(prompts, params, strict=True):
            request = self._request(prompt, wanted)
            results[request.id] = RequestResult(prompt, [Completion()])
            scheduler.submit(request)
        with Progress(disable=not show, transient=True) as progress:
            task = progress.add_task("generating", total=places)
            while not scheduler.idle:
                for reply in scheduler.turn():
                    if isinstance(reply, Tokens):
                        results[reply.id].outputs[0].token_ids += reply.ids
                    elif isinstance(reply, Failed):
                        raise AerieError(reply.message, code=reply.code)
                    elif isinstance(reply, Finished):
                        self._finish(results[reply.id], reply)
                        progress.advance(task)
        return list(results.values())

    def _request(self, prompt: list[int], wanted: SamplingParams) -> Generate:
        self._served += 1
        params = sampling.SamplingParams(
            temperature=wanted.temperature,
            top_k=max(wanted.top_k, 0),
            top_p=wanted.top_p,
            min_p=wanted.min_p,
            max_tokens=min(wanted.max_tokens, max(1, self._lane.capacity.max_length - len(prompt))),
            min_tokens=wanted.min_tokens,
            stop_token_ids=tuple(wanted.stop_token_ids),
            ignore_eos=wanted.ignore_eos,
            seed=secrets.randbits(63) if wanted.seed is None else wanted.seed,
        )
        limits = self.config.limits
        sampling.check_sampling(
            params, temperature_max=limits.temperature_max, vocabulary=self._lane.capacity.vocabulary
        )
        return Generate(id=f"offline-{self._served}", prompt=prompt, sampling=params)

    def _finish(self, result: RequestResult, last: Finished) -> None:
        answer = result.outputs[0]
        answer.text = self.tokenizer.decode(answer.token_ids)
        answer.finish_reason = last.reason
        result.usage = last.usage


def _one_for_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise AerieError(f"{len(params)} sampling parameters for {count} prompts; give one for each, or one for all")
    return list(params)
