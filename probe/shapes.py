"""The draft shapes that a probe measures, and configs in which they can run.

Shapes are the scheduler's own. A lane reserves memory for every shape that it may run, so it is made once for all of
them, and each run's scheduler gets one.
"""

from collections.abc import Sequence

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.shape import DraftShape
from aerie.contracts.spec_section import LoadShape
from aerie.contracts.step import MAX_NODES
from aerie.scheduler.drafting import Drafting

_TREE_CHILDREN = 4


def shape_at(config: Config, rows: int) -> DraftShape:
    """The config's shape with this many rows; if that drafts nothing, that of the nearest smaller load that does."""
    drafting = Drafting(config.spec, head=True)
    for load in (rows, *sorted((entry.rows for entry in config.spec.by_load if entry.rows < rows), reverse=True), 1):
        shape = drafting.shape(load)
        if shape.drafts:
            return shape
    raise ConfigError("the config drafts at no load; set spec.depth and spec.nodes, or spec.by_load", param="spec")


def chain_of(shape: DraftShape) -> DraftShape:
    """The chain with the shape's depth."""
    return DraftShape(shape.depth, 1, shape.depth + 1)


def tree_of(shape: DraftShape) -> DraftShape:
    """The shape itself if it branches; otherwise a tree of the same depth, with twice the nodes of its chain."""
    if shape.topk > 1:
        return shape
    topk = max(2, min(_TREE_CHILDREN, MAX_NODES // max(shape.depth - 1, 1)))
    return DraftShape(shape.depth, topk, min(2 * (shape.depth + 1), MAX_NODES))


def parse_shape(text: str) -> DraftShape:
    """`depth,topk,nodes`, as in 5,4,16."""
    try:
        depth, topk, nodes = (int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{text!r} is not a shape; write depth,topk,nodes, as in 5,4,16") from None
    load_shape(DraftShape(depth, topk, nodes), rows=1)
    return DraftShape(depth, topk, nodes)


def load_shape(shape: DraftShape, *, rows: int) -> LoadShape:
    """An entry of spec.by_load. Raises ConfigError if no config may hold this shape."""
    try:
        return LoadShape(rows=rows, depth=shape.depth, topk=shape.topk, nodes=shape.nodes)
    except ValueError as error:
        raise ConfigError(f"the shape {label(shape)} cannot be served: {error}") from None


def with_shape(config: Config, shape: DraftShape) -> Config:
    """The config that drafts this shape in every step, at every load."""
    load_shape(shape, rows=1)
    changes = {"planner": "fixed", "by_load": (), "depth": shape.depth, "topk": shape.topk, "nodes": shape.nodes}
    return config.model_copy(update={"spec": config.spec.model_copy(update=changes)})


def for_lane(config: Config, shapes: Sequence[DraftShape], *, rows: int) -> Config:
    """The config of a lane that runs up to `rows` rows at once, with its own shapes and these."""
    own = config.spec.by_load or (
        LoadShape(rows=1, depth=config.spec.depth, topk=config.spec.topk, nodes=config.spec.nodes),
    )
    entries = (*own, *(load_shape(shape, rows=1) for shape in shapes))
    running = max(rows, config.scheduler.max_running)
    return config.model_copy(
        update={
            "spec": config.spec.model_copy(update={"by_load": entries}),
            "scheduler": config.scheduler.model_copy(update={"max_running": running}),
        }
    )


def label(shape: DraftShape) -> str:
    """The name of a shape in tables."""
    if not shape.drafts:
        return "none"
    return f"chain {shape.depth}" if shape.topk == 1 else f"tree {shape.depth},{shape.topk},{shape.nodes}"
