"""What grammars cost: batches in rounds, a schema that arrives beside them, and masks beside a simulated device."""

from contextlib import closing
from pathlib import Path

from aerie.commands.prompts import task_prompts
from aerie.contracts.config import load_config
from aerie.engine.lanes.inline import InlineLane
from aerie.probe.masked_device import made_up_vocabulary, measure_masked_device
from aerie.probe.named_schemas import Named
from aerie.probe.structured_costs import BATCHES, FREE, LARGE, Sizes, _steps_beside, measure_arrival, measure_costs
from aerie.worker import build_worker
from tests.house import HOME

PROMPTS = task_prompts(load_config(HOME / "configs/serve/demo.yaml"), 2)["counting"]
"""Tasks with long answers, of which the model is sure: on no CPU does one end at once, as a grammar that allows
everything would let it.
"""
NAMED = [Named(prompt, {"type": "object", "properties": {"name": {"type": "string"}}}) for prompt in PROMPTS]
SIZES = Sizes(rows=2, rounds=1, arrivals=1, tokens=6, temperatures=(0.8,))


def test_every_batch_has_its_cost() -> None:
    settings = ["engine.lane=inline", "engine.kv_tokens=2048", "model.max_length=128", "scheduler.max_running=4"]
    config = load_config(Path(HOME / "configs/serve/demo.yaml"), settings)
    cells = measure_costs(config, NAMED, lambda one: InlineLane(build_worker(one)), SIZES)
    assert [cell["batch"] for cell in cells] == list(BATCHES) and cells[0]["over_free"] == 1
    masked = {cell["batch"]: cell["masks_a_step"] for cell in cells}
    assert masked["schemas of something else"] > 0 < masked["schemas that prompts name"]
    assert masked["free"] == masked["penalised rows"] == 0
    assert all(2 < cell["steps"] <= SIZES.tokens - 2 for cell in cells), "steps of a calibration count, too"
    assert all(cell["token_ms"] > 0 and cell["token_lower"] <= cell["token_over_free"] for cell in cells)
    assert all(cell["lower"] <= cell["over_free"] <= cell["upper"] for cell in cells)
    arrivals = measure_arrival(config, PROMPTS, lambda one: InlineLane(build_worker(one)), SIZES)
    assert [cell["schema"] for cell in arrivals] == list(LARGE)
    assert all(30_000 < cell["bytes"] <= 65_536 and cell["longest_ms"] > 0 for cell in arrivals)


def test_steps_beside_a_new_row_are_as_many_as_are_asked_for() -> None:
    """A free row ends sooner than one whose schema is being built: its longest step is that of as many steps."""
    settings = ["engine.lane=inline", "engine.kv_tokens=2048", "model.max_length=128", "scheduler.max_running=4"]
    config = load_config(Path(HOME / "configs/serve/demo.yaml"), settings)
    with closing(InlineLane(build_worker(config))) as lane:
        few = _steps_beside(lane, config, PROMPTS, FREE, SIZES)
        many = _steps_beside(lane, config, PROMPTS, FREE, SIZES, least=len(few) + 5)
    assert len(many) == len(few) + 5


def test_masks_beside_a_simulated_device() -> None:
    (few, many) = measure_masked_device(made_up_vocabulary(2048), rows=(1, 32), steps=2)
    assert few["masks_ms"] < few["one_thread_ms"] and many["one_thread_ms"] > few["one_thread_ms"]
    assert few["device"] == "simulated" and few["idle_share_more"] >= 0
