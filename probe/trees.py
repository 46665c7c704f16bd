"""`aerie probe trees`: whether a tree is accepted at least as much as a chain, with equal nodes and one depth limit.

If not, the scores that choose a tree's nodes are wrong.
"""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from aerie.contracts.config import Config
from aerie.contracts.shape import DraftShape
from aerie.probe.acceptance import CONCURRENCY, accepted
from aerie.probe.drive import MakeLane, Prompts
from aerie.probe.paired import ratio, work
from aerie.probe.shapes import for_lane

BUDGETS = (2, 3, 4, 8, 16)
"""Nodes per row, root included."""


def measure_trees(
    config: Config,
    prompts: Prompts,
    make_lane: MakeLane,
    *,
    budgets: Sequence[int] = BUDGETS,
    temperatures: Sequence[float] = (0.0, 0.8),
    depth: int = 8,
    topk: int = 4,
    max_tokens: int = 64,
) -> list[dict[str, Any]]:
    """Trees against chains of the same nodes under one depth limit: one cell for each budget and temperature."""
    pairs = {nodes: _rivals(nodes, depth, topk) for nodes in budgets}
    wide = for_lane(config, [shape for pair in pairs.values() for shape in pair], rows=CONCURRENCY)
    cells: list[dict[str, Any]] = []
    with closing(make_lane(wide)) as lane:
        for nodes, (chain, tree) in pairs.items():
            for temperature in temperatures:
                runs = [accepted(lane, wide, shape, prompts, temperature, max_tokens) for shape in (chain, tree)]
                over = ratio(*(work(run.decoded, run.steps) for run in reversed(runs)))
                cells.append(
                    {
                        "nodes": nodes,
                        "temperature": temperature,
                        "depth": chain.depth,
                        "chain": runs[0].acceptance_length,
                        "tree": runs[1].acceptance_length,
                        "tree_over_chain": over.value,
                        "interval": [over.lower, over.upper],
                        "answers": len(prompts),
                    }
                )
    return cells


def _rivals(nodes: int, depth: int, topk: int) -> tuple[DraftShape, DraftShape]:
    cap = min(nodes - 1, depth)
    return DraftShape(cap, 1, cap + 1), DraftShape(cap, topk, nodes)
