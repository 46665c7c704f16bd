"""The speculation settings of a config: the head, and how much is drafted."""

from typing import Annotated, Literal

from pydantic import Field

from aerie.contracts.section import Section
from aerie.contracts.shape import DraftShape
from aerie.contracts.step import MAX_NODES


class LoadShape(Section):
    """The draft shape while at most `rows` rows run; depth 0 drafts nothing."""

    rows: int = Field(ge=1)
    """The most running rows that this shape serves."""
    depth: int = Field(ge=0, le=MAX_NODES - 1)
    """See spec.depth."""
    topk: int = Field(default=1, ge=1, le=16)
    """See spec.topk."""
    nodes: int = Field(ge=1, le=MAX_NODES)
    """See spec.nodes."""

    @property
    def shape(self) -> DraftShape:
        return DraftShape(self.depth, self.topk, self.nodes)


class SpecConfig(Section):
    head: str = "auto"
    """`auto` looks the target up in configs/head, `none` decodes without speculation; else a folder or a hub id."""
    revision: str | None = None
    """Branch, tag or commit of the head's hub id."""
    depth: int = Field(default=4, ge=0, le=MAX_NODES - 1)
    """The most tokens drafted ahead."""
    topk: int = Field(default=1, ge=1, le=16)
    """Children kept of a node; 1 drafts chains."""
    nodes: int = Field(default=5, ge=1, le=MAX_NODES)
    """Nodes verified for each row, root included."""
    by_load: tuple[LoadShape, ...] = ()
    """Draft shapes by running rows, ascending; beyond the last entry nothing is drafted. Empty: one shape at every
    load.
    """
    planner: Literal["goodput", "fixed"] = "goodput"
    """`goodput` chooses each step's shape, up to the largest of those above, from measured costs and observed
    acceptance, and drafts nothing where that is faster; `fixed` drafts these shapes.
    """
    objective: Literal["goodput", "latency"] = "goodput"
    """What `goodput` maximizes: tokens of all requests a second, or the geometric mean of the requests' speeds."""
    resting_tokens: int = Field(default=64, ge=0, le=4096)
    """Tokens that `goodput` may let a request decode plainly before it drafts again: the taps of so many are kept for
    each row. A request that decodes more of them stays plain.
    """
    draft_temperature: float = Field(default=1.5, gt=0)
    """The `a` of z = (a / T) log q + g: the weight of the draft distribution q against the noise g; `inf` ignores the
    noise.
    """
    edge_temperatures: tuple[Annotated[float, Field(gt=0)], ...] = ()
    """tau by depth: an edge of the tree scores log softmax(z / tau); 1 for depths without one."""
    confidence_threshold: float = Field(default=0.0, ge=0, lt=1)
    """A chain ends before the first node whose path is less likely by the head; `depth` stays the limit. Only on a CPU,
    where the check needs no host sync. 0 drafts all levels.
    """
    quantization: Literal["auto", "none", "int8"] = "auto"
    """Precision of the head's matrices; `auto` is int8 with the C++ kernels of a CPU, unless products of bf16 serve, by
    dots or by AMX, and a trial at load finds them faster. Triton's kernels of a GPU have int8 too, if it is set. It may
    change drafts, never the text.
    """
    simulate_acceptance: float | None = Field(default=None, ge=1)
    """Commit this many tokens a step on average, drawn at random and not checked; for measurements only."""
    require_provenance: bool = False
    """Reject a head whose card does not name this target's weights and chat template."""

    @property
    def shape(self) -> DraftShape:
        """The shape at every load, if `by_load` has no entries."""
        return DraftShape(self.depth, self.topk, self.nodes)
