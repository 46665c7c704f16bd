"""Stage 3: the target answers the prompts, through any endpoint that speaks OpenAI's chat API and serves its template.

A head learns to predict its target's output, so regenerated answers are worth more than a data set's. Every answer is
written to a journal as it arrives, and a start after a kill requests only the missing ones. Turns are answered in
order, after the target's own earlier answers. A thinking model's reasoning is kept beside its answer, and so are the
generated ids if the endpoint returns them.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import APIError, AsyncOpenAI

from aerie.contracts.errors import AerieError
from aerie.contracts.provenance import weights_hash
from aerie.train.pipeline import filter as filtering
from aerie.train.pipeline.config import PipelineConfig, RespondStage
from aerie.train.pipeline.data.lines import as_line, mend, read_own, write_lines
from aerie.train.pipeline.folder import BegunStage, begin, input_hash, reported_when_full
from aerie.train.progress import bar, say

STAGE = "respond"
FILE = "conversations.jsonl"

_JOURNAL = "journal.jsonl"
_SHOWN = 5

Record = dict[str, Any]
"""id, sample, temperature, domain, license and turns: {role, content}, of assistants also finish_reason and, where
known, reasoning_content, prompt_token_ids and token_ids."""


@dataclass(frozen=True, slots=True)
class _Task:
    prompt: Record
    sample: int
    temperature: float

    @property
    def key(self) -> str:
        return f"{self.prompt['id']}/{self.sample}"


def respond(config: PipelineConfig, endpoint: AbstractContextManager[str]) -> Path:
    """`endpoint` gives a base URL; it is entered only if an answer is missing.

    Raises AerieError if the endpoint does not work or too many prompts stay unanswered.
    """
    stage, work = config.respond, Path(config.work)
    # The address of the target changes no answer, so a run may continue at another one.
    settings = stage.model_dump(
        mode="json", exclude={"url", "api_key", "concurrency", "retries", "failures", "seconds"}
    )
    inputs = {filtering.STAGE: input_hash(work, filtering.STAGE), "target": weights_hash(Path(config.target))}
    begun = begin(work, STAGE, settings | {"seed": config.seed}, inputs)
    tasks = [
        _Task(prompt, sample, temperature)
        for number, prompt in enumerate(read_own(work / filtering.STAGE / filtering.FILE))
        for sample, temperature in enumerate(stage.temperatures)
        if stage.every_temperature or sample == number % len(stage.temperatures)
    ]
    known = {_key(record) for record in mend(begun.path / _JOURNAL)}
    missing = [task for task in tasks if task.key not in known]
    failed: list[str] = []
    if missing:
        with endpoint as url, reported_when_full(begun.path), bar(STAGE, len(tasks), len(known)) as advance:
            failed = asyncio.run(_answer_all(stage, config.seed, url, begun.path / _JOURNAL, missing, advance))
    if len(failed) > stage.failures:
        raise AerieError(
            f"{len(failed)} of {len(tasks)} prompts were not answered; respond.failures allows {stage.failures}. "
            f"Answers are kept; start the stage again to ask for the missing ones:\n" + "\n".join(failed[:_SHOWN])
        )
    return _finish(begun, tasks)


async def _answer_all(
    stage: RespondStage, seed: int, url: str, path: Path, missing: list[_Task], advance: Callable[[int], None]
) -> list[str]:
    """Appends answers to the journal at `path`; returns the errors, prompt by prompt."""
    failed: list[str] = []
    client = AsyncOpenAI(base_url=url, api_key=stage.api_key, max_retries=stage.retries, timeout=stage.seconds)
    waiting = iter(missing)
    async with client:
        model = stage.model or await _first_model(client, url)
        with path.open("ab") as journal:

            async def work() -> None:
                for task in waiting:
                    try:
                        record = await _converse(client, stage, model, seed, task)
                    except APIError as error:
                        failed.append(f"  {task.key}: {_reason(error)}")
                        if len(failed) > stage.failures + stage.concurrency:  # the endpoint is gone, not one prompt bad
                            return
                    else:
                        journal.write(as_line(record))
                        journal.flush()
                    advance(1)

            await asyncio.gather(*(work() for _ in range(min(stage.concurrency, len(missing)))))
    return failed


async def _first_model(client: AsyncOpenAI, url: str) -> str:
    try:
        listed = await client.models.list()
    except APIError as error:
        raise AerieError(f"{url} does not answer as an OpenAI endpoint does: {_reason(error)} (respond.url)") from None
    if not listed.data:
        raise AerieError(f"{url}/models lists no model; name one with respond.model")
    return str(listed.data[0].id)


async def _converse(client: AsyncOpenAI, stage: RespondStage, model: str, seed: int, task: _Task) -> Record:
    """Answers every user turn, each after the target's own answers to earlier ones."""

    async def ask(turns: list[Record]) -> Record:
        answer = await client.chat.completions.create(
            model=model,
            messages=[{"role": turn["role"], "content": turn["content"]} for turn in turns],
            temperature=task.temperature,
            max_tokens=stage.max_tokens,
            seed=_seed(seed, task, len(turns)),
            extra_body={"return_token_ids": True} if stage.token_ids else {},
        )
        return _turn(answer.model_dump())

    async def complete(prompt: list[int]) -> Record:
        """The answer to ids, which keep what a chat message cannot say: tools and their results."""
        answer = await client.completions.create(
            model=model,
            prompt=prompt,
            temperature=task.temperature,
            max_tokens=stage.max_tokens,
            seed=_seed(seed, task, 1),
            extra_body={"return_token_ids": True},
        )
        return _completed(answer.model_dump(), prompt)

    if "prompt_token_ids" in task.prompt:
        turns = [*task.prompt["turns"], await complete(task.prompt["prompt_token_ids"])]
    else:
        turns = await _answered(task.prompt["turns"], ask)
    kept = {key: task.prompt[key] for key in ("id", "domain", "license")}
    return {**kept, "sample": task.sample, "temperature": task.temperature, "turns": turns}


async def _answered(asked: list[Record], ask: Callable[[list[Record]], Awaitable[Record]]) -> list[Record]:
    turns: list[Record] = []
    for index, turn in enumerate(asked):
        turns.append(turn)
        if turn["role"] == "user" and (index + 1 == len(asked) or asked[index + 1]["role"] == "user"):
            turns.append(await ask(turns))
            if turns[-1]["finish_reason"] != "stop":  # a conversation ends at a truncated answer
                break
    return turns


def _turn(answer: dict[str, Any]) -> Record:
    """The turn in a chat completion, from any server."""
    choice = answer["choices"][0]
    message = choice["message"]
    turn = {"role": "assistant", "content": message.get("content") or "", "finish_reason": choice["finish_reason"]}
    thought = message.get("reasoning_content") or message.get("reasoning")
    if thought:
        turn["reasoning_content"] = thought
    prompt = answer.get("prompt_token_ids") or choice.get("prompt_token_ids")
    if prompt and choice.get("token_ids"):
        turn |= {"prompt_token_ids": prompt, "token_ids": choice["token_ids"]}
    return turn


def _completed(answer: dict[str, Any], prompt: list[int]) -> Record:
    """The turn in a completion of ids. Raises AerieError if it came without the ids of the answer."""
    choice = answer["choices"][0]
    if not choice.get("token_ids"):
        raise AerieError("the endpoint returned no token ids (return_token_ids), which drawn exercises need")
    turn = {"role": "assistant", "content": choice["text"], "finish_reason": choice["finish_reason"]}
    return turn | {"prompt_token_ids": prompt, "token_ids": choice["token_ids"]}


def _key(record: Record) -> str:
    return f"{record['id']}/{record['sample']}"


def _seed(seed: int, task: _Task, turn: int) -> int:
    """The seed of one answer; does not depend on kills or on the order of answers."""
    return int.from_bytes(hashlib.sha256(f"{seed} {task.key} {turn}".encode()).digest()[:4], "little") >> 1


def _reason(error: APIError) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


def _finish(begun: BegunStage, tasks: list[_Task]) -> Path:
    """Writes answers in the order of the prompts, whatever order they arrived in."""
    path = begun.path / _JOURNAL
    found = {_key(record): record for record in mend(path)}
    ordered = [found[task.key] for task in tasks if task.key in found]
    with reported_when_full(begun.path):
        write_lines(begun.path / FILE, ordered)
    path.unlink(missing_ok=True)
    ends = Counter(turn["finish_reason"] for record in ordered for turn in record["turns"] if "finish_reason" in turn)
    licenses = Counter(record["license"] for record in ordered)
    say(f"{len(ordered)} conversations, answers ended by {dict(sorted(ends.items()))}")
    return begun.finish(
        {
            "conversations": len(ordered),
            "unanswered": len(tasks) - len(ordered),
            "answers": ends.total(),
            "finish_reasons": dict(sorted(ends.items())),
            "licenses": dict(sorted(licenses.items())),
        }
    )
