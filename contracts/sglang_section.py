"""The section `sglang` of a config: how far SGLang spreads. Read where `engine.kind` is `sglang`; `tp` also where it is
`sglang-model`.
"""

from typing import Any

from pydantic import Field

from contracts.section import Section


class SGLangConfig(Section):
    tp: int = Field(default=1, ge=1)
    """Ranks that share every layer: tensor parallelism."""
    pp: int = Field(default=1, ge=1)
    """Ranks that share the layers among them: pipeline parallelism; not with an EAGLE-3 head."""
    dp: int = Field(default=1, ge=1)
    """Replicas of the model behind one front end: data parallelism."""
    ep: int = Field(default=1, ge=1)
    """Ranks that share the experts of a mixture: expert parallelism."""
    nnodes: int = Field(default=1, ge=1)
    """Machines; each runs `aerie serve` with the same settings and its own node_rank."""
    node_rank: int = Field(default=0, ge=0)
    """0 is the machine that speaks HTTP; the others run ranks only."""
    dist_init_addr: str | None = None
    """HOST:PORT of machine 0, where the ranks of several machines find each other."""
    memory: float | None = Field(default=None, gt=0, lt=1)
    """Share of a GPU's memory for weights and KV together (mem_fraction_static); SGLang's choice by default."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of SGLang's engine under its own names, as in sglang.arguments.schedule_policy=fcfs."""
