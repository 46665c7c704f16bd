"""Adapts SGLang's engine to the bridge: the only file here that uses its objects, for every supported release.

Made by `process`. It relies on what has been stable for many releases: `Engine`, `async_generate`,
`get_all_child_pids`, `tokenizer_manager.abort_request` and `get_loads`.
"""

import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aerie.bridge.arguments import drafts, unused_settings
from aerie.bridge.parameters import sampling_words
from aerie.bridge.tally import Load
from aerie.contracts.config import Config
from aerie.contracts.labels import labels
from aerie.contracts.messages import Generate, Ready


class EngineBackend:
    """`engine` is a started `sglang.Engine` of machine 0; `grammars`: it holds answers to them."""

    def __init__(self, engine: Any, config: Config, *, grammars: bool) -> None:
        self._engine = engine
        self._config = config
        self._grammars = grammars
        self._arrivals = engine.tokenizer_manager
        self._pids = tuple(engine.get_all_child_pids())
        self._failure: str | None = None
        self.device = str(engine.server_args.device)
        self.depth = config.spec.depth if drafts(config) else 0
        self.greedy_only = self.depth > 0 and self.device == "cpu"
        self.salts = "cache_salt" in inspect.signature(engine.async_generate).parameters

    async def generate(self, request: Generate) -> AsyncIterator[dict[str, Any]]:
        ranks = request.sampling.logprobs
        outputs = await self._engine.async_generate(
            input_ids=request.prompt,
            sampling_params=sampling_words(request.sampling, request.grammar),
            return_logprob=ranks >= 0,
            logprob_start_len=-1,
            top_logprobs_num=max(ranks, 0),
            stream=True,
            rid=request.id,
            **({"cache_salt": request.cache_salt} if request.cache_salt else {}),
        )
        async for output in outputs:
            yield output

    def abort(self, id: str) -> None:
        self._arrivals.abort_request(rid=id)

    async def load(self) -> Load:
        replicas = await self._arrivals.get_loads()
        return Load(
            running=sum(one.num_running_reqs for one in replicas),
            tokens_used=sum(one.num_used_tokens for one in replicas),
            tokens_total=sum(one.max_total_num_tokens for one in replicas),
            max_running=sum(one.max_running_requests for one in replicas),
        )

    def fail(self, reason: str) -> None:
        """Records that a process of the engine has reported its failure."""
        self._failure = self._failure or reason

    def death(self) -> str | None:
        gone = [pid for pid in self._pids if not lives(pid)]
        return self._failure or (f"its process {gone[0]} has ended" if gone else None)

    def ready(self, release: str, load: Load) -> Ready:
        """The engine's Ready message: what the front end needs, and what /config shows."""
        model = self._arrivals.model_config
        return Ready(
            max_length=int(self._arrivals.max_req_input_len),
            vocabulary=int(model.vocab_size),
            end_ids=sorted(int(token) for token in model.hf_eos_token_id or ()),
            grammars=self._grammars,
            report=self._report(release, load),
        )

    def _report(self, release: str, load: Load) -> dict[str, str | int | float | bool | None]:
        config, spread = self._config, self._config.sglang
        return {
            "engine": f"SGLang {release}, its own scheduler, sampling and attention",
            "device": self.device,
            "max_running": config.scheduler.max_running,
            "max_running_by_memory": load.max_running or None,
            "kv_tokens": load.tokens_total or None,
            "tp": spread.tp,
            "pp": spread.pp,
            "dp": spread.dp,
            "ep": spread.ep,
            "machines": spread.nnodes,
            "head": config.spec.head if self.depth else "none",
            "seeds_give_the_same_text": False,
            "unused_settings": ", ".join(unused_settings(config)) or "none",
            **labels(config),
        }


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie does not count as running."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")
