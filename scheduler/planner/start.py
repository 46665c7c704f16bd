"""Makes the planner of a deployment. Called by the loop, once."""

from aerie.contracts.config import Config
from aerie.contracts.shape import chain_depths
from aerie.contracts.step import Lane
from aerie.scheduler.drafting import Drafting
from aerie.scheduler.planner.calibration import calibrated
from aerie.scheduler.planner.costs import StepCosts
from aerie.scheduler.planner.goodput import Goodput


def calibrated_planner(config: Config, lane: Lane, drafting: Drafting, rows: int) -> Goodput:
    """Times some steps of the lane first."""
    shapes, most = drafting.shapes, rows * drafting.max_nodes
    if config.scheduler.poison:  # calibration reads one generation many times
        costs = StepCosts(most)
    else:
        costs = calibrated(lane, rows, chain_depths(shapes), most)
    return Goodput(config.spec, costs, shapes, rows=rows)
