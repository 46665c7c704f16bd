"""The probes of drafting: shapes, draft temperatures, trees, tuning."""

import math

import pytest

from aerie.contracts.config import Config, parse_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.messages import Generate
from aerie.contracts.sampling import SamplingParams
from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.contracts.spec_section import LoadShape, SpecConfig
from aerie.contracts.step import Lane
from aerie.probe.draft_temperature import measure_draft_temperatures
from aerie.probe.drive import Answer, Run
from aerie.probe.shapes import chain_of, for_lane, label, parse_shape, shape_at, tree_of, with_shape
from aerie.probe.tasks import ALL, by_place, measure_tasks
from aerie.probe.trees import measure_trees
from aerie.probe.tune import MARGIN, Cell, merged, tune
from aerie.spec.build import reserved_slots
from aerie.spec.drafters.eagle3 import scratch_slots
from tests.probe.conftest import PROMPTS, make_lane


def test_shapes_of_a_config() -> None:
    table = (LoadShape(rows=2, depth=5, topk=4, nodes=16), LoadShape(rows=8, depth=3, topk=1, nodes=4))
    config = Config(spec=SpecConfig(by_load=table))
    assert shape_at(config, 1) == DraftShape(5, 4, 16)
    assert shape_at(config, 8) == shape_at(config, 64) == DraftShape(3, 1, 4)
    assert chain_of(DraftShape(5, 4, 16)) == DraftShape(5, 1, 6)
    assert tree_of(DraftShape(5, 4, 16)) == DraftShape(5, 4, 16)
    assert tree_of(DraftShape(3, 1, 4)) == DraftShape(3, 4, 8)
    assert with_shape(config, DraftShape(6, 2, 9)).spec.by_load == ()
    with pytest.raises(ConfigError, match="drafts at no load"):
        shape_at(Config(spec=SpecConfig(depth=0, nodes=1)), 1)


@pytest.mark.parametrize("depth", range(1, 60))
def test_a_tree_of_any_chain_can_be_served(depth: int) -> None:
    tree = tree_of(DraftShape(depth, 1, depth + 1))
    config = for_lane(Config(), [tree], rows=100)
    assert config.scheduler.max_running == 100
    if tree.topk * (depth - 1) <= 64:
        assert reserved_slots(config.spec, scratch_slots) >= tree.nodes
    else:
        assert depth > 33


@pytest.mark.parametrize("text", ["5", "5,4", "a,b,c", "4,2,65", "4,17,8", "-1,1,2"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a shape|cannot be served"):
        parse_shape(text)


def test_each_draft_temperature_is_measured(config: Config) -> None:
    cells = measure_draft_temperatures(
        config, PROMPTS, make_lane, values=(0.5, math.inf), temperatures=(0.6, 1.0), max_tokens=10
    )
    assert [(cell["a"], cell["mode"], cell["temperature"]) for cell in cells] == [
        (a, mode, temperature) for a in (0.5, math.inf) for mode in ("chain", "tree") for temperature in (0.6, 1.0)
    ]
    assert all(1 <= cell["acceptance_length"] <= 4 for cell in cells)
    assert all(cell["over_target_only"] == 1 for cell in cells if math.isinf(cell["a"]))
    assert all(cell["interval"][0] <= cell["over_target_only"] <= cell["interval"][1] for cell in cells)


def test_trees_and_chains_have_equal_nodes_and_depth(config: Config) -> None:
    cells = measure_trees(config, PROMPTS, make_lane, budgets=(2, 4, 8), temperatures=(0.0,), depth=5, max_tokens=10)
    assert [(cell["nodes"], cell["depth"]) for cell in cells] == [(2, 1), (4, 3), (8, 5)]
    assert all(cell["tree_over_chain"] == pytest.approx(cell["tree"] / cell["chain"]) for cell in cells)
    assert all(cell["interval"][0] <= cell["tree_over_chain"] <= cell["interval"][1] for cell in cells)


def test_a_gain_within_the_noise_is_not_taken_and_shapes_do_not_grow(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = DraftShape(2, 1, 3), DraftShape(2, 2, 4)
    planted = {1: (1.5, 1.4), 2: (1.3, 1.6), 4: (1.09, 1.2), 8: (1.3, 1.4)}
    """By load: the speed-ups of the small and of the large shape."""

    def measured(
        lane: Lane, wide: Config, prompts: object, shapes: tuple[DraftShape, ...], load: int, most: int
    ) -> dict[DraftShape, Cell]:
        speedups = zip(shapes, (1.0, *planted[load]), strict=True)
        return {shape: {"rows": load, "shape": label(shape), "speedup": speedup} for shape, speedup in speedups}

    monkeypatch.setattr("aerie.probe.tune._measure", measured)
    cells, table = tune(config, PROMPTS, make_lane, loads=tuple(planted), shapes=(small, large))
    chosen = {cell["rows"]: cell["shape"] for cell in cells if cell["chosen"]}
    assert chosen == {1: "chain 2", 2: "chain 2", 4: "none", 8: "none"}
    assert table == [LoadShape(rows=2, depth=2, topk=1, nodes=3)]


def test_a_speed_up_is_the_median_of_rounds_in_which_shapes_take_turns(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine whose second round takes ten times as long, and whose third is disturbed for one shape."""
    seconds = {NO_DRAFT: iter((1.0, 10.0, 1.0)), DraftShape(2, 1, 3): iter((0.5, 5.0, 4.0))}
    generations: list[DraftShape] = []

    def driven(lane: Lane, own: Config, requests: list[Generate], *, concurrency: int) -> Run:
        answers = [Answer(request, 0.0, [1] * request.sampling.max_tokens) for request in requests]
        if requests[0].sampling.max_tokens == 4:
            return Run(answers, 1.0, 1.0, 1.0, {})
        shape = DraftShape(own.spec.depth, own.spec.topk, own.spec.nodes)
        generations.append(shape)
        return Run(answers, next(seconds[shape]), 1.0, 1.0, {})

    monkeypatch.setattr("aerie.probe.tune.drive", driven)
    cells, _ = tune(config, PROMPTS, make_lane, loads=(1,), shapes=(DraftShape(2, 1, 3),))
    assert generations == [NO_DRAFT, DraftShape(2, 1, 3)] * 3
    assert [cell["speedup"] for cell in cells] == [1.0, 2.0]


def test_tuning_makes_a_table_that_a_config_accepts(config: Config) -> None:
    shapes = (DraftShape(2, 1, 3), DraftShape(2, 2, 4))
    cells, table = tune(config, PROMPTS, make_lane, loads=(1, 3), shapes=shapes, max_tokens=6)
    assert [(cell["rows"], cell["shape"]) for cell in cells] == [
        (rows, shape) for rows in (1, 3) for shape in ("none", "chain 2", "tree 2,2,4")
    ]
    for rows in (1, 3):
        own = [cell for cell in cells if cell["rows"] == rows]
        assert [cell["chosen"] for cell in own].count(True) == 1
        chosen = next(cell for cell in own if cell["chosen"])
        assert chosen is own[0] or chosen["speedup"] >= MARGIN
    assert parse_config({"spec": {"by_load": [entry.model_dump() for entry in table]}}).spec.by_load == tuple(table)


def test_a_table_says_nothing_twice() -> None:
    def entry(rows: int, depth: int) -> LoadShape:
        return LoadShape(rows=rows, depth=depth, nodes=depth + 1)

    loads = [entry(1, 5), entry(2, 5), entry(4, 3), entry(8, 0), entry(16, 0)]
    assert merged(loads) == [entry(2, 5), entry(4, 3)]
    assert merged([entry(1, 0), entry(2, 4), entry(4, 0)]) == [entry(1, 0), entry(2, 4)]
    assert merged([entry(1, 0), entry(2, 0)]) == [entry(2, 0)]


def test_tasks_are_measured_each_and_together(config: Config) -> None:
    prompts = {"code": PROMPTS[:2], "edits": PROMPTS[2:3]}
    cells = measure_tasks(
        config,
        prompts,
        make_lane,
        shapes=[DraftShape(2, 1, 3), DraftShape(2, 2, 4)],
        temperatures=(0.0,),
        max_tokens=12,
    )
    assert [(cell["task"], cell["shape"]) for cell in cells] == [
        (task, shape) for shape in ("chain 2", "tree 2,2,4") for task in ("code", "edits", ALL)
    ]
    for first in (0, 3):
        code, edits, whole = cells[first : first + 3]
        assert whole["accepted"] == (code["accepted"] + edits["accepted"]) / 2
        assert (code["answers"], edits["answers"], whole["answers"]) == (2, 1, 3)
    assert all(cell["0-8"] >= 1 and cell["200-"] is None for cell in cells)
    assert all(cell["accepted_interval"][0] <= cell["accepted"] <= cell["accepted_interval"][1] for cell in cells)


def test_places_count_from_the_step_s_first_token() -> None:
    answer = Answer(Generate(id="a", prompt=[1], sampling=SamplingParams()), 0.0, replies=[1, 4, 5, 3, 1])
    assert by_place([answer]) == {
        "0-8": 4.5,  # the steps that began at 1 and 5
        "8-32": 2.0,  # at 10 and 13
        "32-64": None,
        "64-128": None,
        "128-200": None,
        "200-": None,
    }
