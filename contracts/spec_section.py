"""What a config says about speculation: the head, and how much is drafted."""

from typing import Annotated, Literal

from pydantic import Field

from contracts.section import Section
from contracts.step import MAX_NODES


class LoadShape(Section):
    """The draft shape while at most `rows` rows run; depth 0 drafts nothing."""

    rows: int = Field(ge=1)
    """The most running rows that this shape serves."""
    depth: int = Field(ge=0, le=MAX_NODES - 1)
    """As spec.depth."""
    topk: int = Field(default=1, ge=1, le=16)
    """As spec.topk."""
    nodes: int = Field(ge=1, le=MAX_NODES)
    """As spec.nodes."""


class SpecConfig(Section):
    head: str = "auto"
    """`auto` looks the target up in configs/head, `none` decodes plainly, else a folder or hub id."""
    revision: str | None = None
    """Branch, tag or commit of the head's hub id."""
    depth: int = Field(default=4, ge=0, le=MAX_NODES - 1)
    """Tokens guessed ahead, at most."""
    topk: int = Field(default=1, ge=1, le=16)
    """Children of a node; 1 drafts chains."""
    nodes: int = Field(default=5, ge=1, le=MAX_NODES)
    """Nodes verified of a row, root included."""
    by_load: tuple[LoadShape, ...] = ()
    """Shapes by running rows, ascending; beyond the last entry nothing is drafted. Empty: one shape for every load."""
    draft_temperature: float = Field(default=1.5, gt=0)
    """The `a` of z = (a / T) log q + g: how sharply the draft's distribution is trusted; `inf` ignores the noise."""
    edge_temperatures: tuple[Annotated[float, Field(gt=0)], ...] = ()
    """tau by depth: an edge of the tree scores log softmax(z / tau). 1 where not given."""
    confidence_threshold: float = Field(default=0.0, ge=0, lt=1)
    """A step's chains end where none of them is as likely as this by the head's own account; `depth` is then the most.
    Only on a CPU, where looking costs nothing. 0 drafts all levels.
    """
    quantization: Literal["auto", "none", "int8"] = "auto"
    """Bits of the head's matrices; `auto` is int8 where the C++ kernels of a CPU run. Guesses may change, the text
    cannot.
    """
    simulate_acceptance: float | None = Field(default=None, ge=1)
    """Commit so many tokens a step, drafts drawn at random and not checked; only for measurements."""
    require_provenance: bool = False
    """Refuse a head whose card does not name this target's weights and chat template."""
