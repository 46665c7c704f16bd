"""The section `sglang` of a config: how SGLang is distributed. Read if `engine.kind` is `sglang`; `tp` also if it is
`sglang-model`.
"""

from typing import Any

from pydantic import Field

from aerie.contracts.section import Section


class SGLangConfig(Section):
    tp: int = Field(default=1, ge=1)
    """Ranks that share every layer: tensor parallelism."""
    pp: int = Field(default=1, ge=1)
    """Ranks that divide the layers among them: pipeline parallelism; not with an EAGLE-3 head."""
    dp: int = Field(default=1, ge=1)
    """Replicas of the model behind one front end: data parallelism."""
    ep: int = Field(default=1, ge=1)
    """Ranks that divide the experts of a mixture: expert parallelism."""
    nnodes: int = Field(default=1, ge=1)
    """Machines; each runs `aerie serve` with the same settings and its own node_rank."""
    node_rank: int = Field(default=0, ge=0)
    """0 is the machine that serves HTTP; the others run ranks only."""
    dist_init_addr: str | None = None
    """HOST:PORT of machine 0, where the ranks of several machines meet."""
    memory: float | None = Field(default=None, gt=0, lt=1)
    """Share of a GPU's memory for weights and KV together (mem_fraction_static); by default SGLang's choice."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of SGLang's engine under their SGLang names, such as sglang.arguments.schedule_policy=fcfs."""
