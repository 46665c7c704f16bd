"""Rows with grammars among aborts, preemptions, small chunks of prompts and cached prefixes: nothing changes a text."""

import random
from contextlib import closing
from pathlib import Path

from aerie.contracts.config import Config, load_config
from aerie.contracts.messages import Abort, Failed, Finished, Generate, Tokens
from aerie.contracts.sampling import SamplingParams
from aerie.engine.lanes.inline import InlineLane
from aerie.probe.structured import GRAMMARS
from aerie.scheduler import Scheduler
from aerie.server.text.tokenizer import Tokenizer
from aerie.worker import build_worker
from tests.house import HOME
from tests.patience import PATIENCE

ROWS, REQUESTS = 8, 20


def config(*settings: str) -> Config:
    fixed = ["engine.lane=inline", "model.max_length=128", f"scheduler.max_running={ROWS}", "spec.planner=fixed"]
    return load_config(Path(HOME / "configs/serve/demo.yaml"), [*fixed, *settings])


def requests(seed: int) -> list[Generate]:
    """Half of them with a grammar; prompts share prefixes."""
    tokenizer, source = Tokenizer(HOME / "models/demo/target"), random.Random(seed)
    asked = []
    for number in range(REQUESTS):
        message = {"role": "user", "content": f"What does module {source.randrange(3)} of the library do?" * 2}
        sampling = SamplingParams(
            temperature=source.choice([0.0, 1.0, 2.0]),
            max_tokens=source.randrange(8, 48),
            min_tokens=source.choice([0, 0, 4]),
            top_k=source.choice([0, 0, 7]),
            repetition_penalty=source.choice([1.0, 1.0, 1.3]),
            logit_bias=source.choice([{}, {90: 4.0}]),
            seed=number,
        )
        grammar = source.choice([None, *GRAMMARS])
        asked.append(
            Generate(id=str(number), prompt=tokenizer.chat_ids([message], {}), sampling=sampling, grammar=grammar)
        )
    return asked


def answers(own: Config, asked: list[Generate], *, disturbed: float = 0.0) -> tuple[dict[str, list[int]], Scheduler]:
    """The texts of the requests that were not aborted. In a share of the turns one leaves, or one is preempted."""
    source, ended = random.Random(1), {}
    texts: dict[str, list[int]] = {one.id: [] for one in asked}
    with closing(InlineLane(build_worker(own))) as lane:
        scheduler = Scheduler(lane, own)
        for one in asked:
            scheduler.submit(one)
        while not scheduler.idle:
            for reply in scheduler.iterate():
                assert not isinstance(reply, Failed), reply
                if isinstance(reply, Tokens):
                    texts[reply.id] += reply.ids
                elif isinstance(reply, Finished):
                    ended[reply.id] = reply
            open_ones = [one.id for one in asked if one.id not in ended]
            if open_ones and source.random() < disturbed:
                scheduler.submit(Abort(id=source.choice(open_ones)))
            if source.random() < disturbed and scheduler.rows.running > 1:
                while scheduler._flights:
                    scheduler._settle()
                if scheduler.rows.running > 1:
                    scheduler.policy.preempt()
        scheduler.check()
        lane._worker.guides._building._building.submit(lambda: None).result(PATIENCE)
        assert not lane._worker.guides._building.made, "what was prepared for a request is left over"
    kept = {id: text for id, text in texts.items() if ended[id].reason != "abort"}
    for id, text in kept.items():
        assert ended[id].usage.completion_tokens == len(text)
    return kept, scheduler


def test_texts_are_those_of_a_calm_device() -> None:
    asked = requests(5)
    calm, _ = answers(config("engine.kv_tokens=8192", "spec.head=none"), asked)
    rough = config(
        "engine.kv_tokens=288",  # of which eight rows may need more
        "scheduler.prefill_chunk=16",
        "spec.depth=3",
        "spec.topk=2",
        "spec.nodes=6",
    )
    kept, scheduler = answers(rough, asked, disturbed=0.05)
    assert scheduler.policy.preemptions and scheduler.policy.hits and len(kept) < len(asked)
    assert kept == {id: calm[id] for id in kept}
    masking = scheduler.stats.masking
    assert masking.masks and masking.choices > masking.masks
