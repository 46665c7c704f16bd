"""Head KV: what drafts promise is asked again as steps teach, and learned from even while no row may draft."""

from aerie.contracts.shape import chain_depths
from aerie.scheduler.planner.chains import Chains
from aerie.scheduler.planner.choice import Objective
from aerie.scheduler.planner.guard import Guard
from aerie.scheduler.planner.held import HELD
from aerie.scheduler.planner.keeping import Keeping
from aerie.scheduler.planner.predictions import Predictions
from aerie.scheduler.planner.survival import Survival
from aerie.scheduler.planner.trials import Trials
from tests.scheduler.planner.planners import CHAINS, costs


def test_steps_are_learned_from_before_drafts_are_asked_what_they_promise():
    known, depths, learned = costs(), chain_depths(CHAINS), []
    chains, survival = Chains(known, depths, Objective.GOODPUT, rows=4), Survival(4, 1, depths[-1])
    predicted, now = Predictions(known, Guard()), survival.offsets
    keeping = Keeping(known, chains, survival, predicted, Trials(), lambda: learned.append(now.now))
    for now.now in range(3 * HELD):
        keeping.pays(4, 0.0, 800, prompt=40, answer=400, headed=0)
    assert learned == [0, 1, 2, 4, 8, 16, 32, 64]
    keeping.pays(2, 0.0, 800, prompt=40, answer=400, headed=0)
    assert len(learned) == 9, "other numbers of rows are asked for themselves"
