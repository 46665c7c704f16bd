"""What is reported beside the tokens: log probabilities, usage, snapshots; and how much is drafted for whom."""

from aerie.contracts.messages import STEP_TOKENS, Abort, SpeculationParams
from aerie.contracts.spec_section import LoadShape, SpecConfig
from aerie.scheduler.drafting import PATIENCE
from tests import fakes
from tests.scheduler.driver import PLAIN, Driver, generate
from tests.scheduler.planner.planners import CHAINS, SPEC, planner


def test_each_step_is_told_with_the_log_probabilities_asked_for():
    driver = Driver()
    requests = [
        generate("none", [1, 2], max_tokens=7),
        generate("own", [1, 3], max_tokens=7, logprobs=0),
        generate("three", [1, 4], max_tokens=7, logprobs=3),
    ]
    driver.run(*requests)
    assert not driver.reported["none"].logprobs
    for id, count in (("own", 0), ("three", 3)):
        reported = driver.reported[id]
        assert [score.logprob for score in reported.logprobs] == [-float(token) for token in reported.ids]
        assert all(score.rank_ids == list(range(count)) for score in reported.logprobs)
        assert all(len(score.rank_logprobs) == count for score in reported.logprobs)


def test_usage_counts_what_was_drafted_and_accepted():
    worker = fakes.FakeWorker(fakes.capacity(), acceptance=lambda depth, _: min(depth, 2))
    driver = Driver(lane=fakes.DelayedLane(worker))
    driver.run(generate("a", [1, 2, 3], max_tokens=13))
    usage = driver.reported["a"].end.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 13)
    # The first token comes from the prompt; then 4 steps commit 3 tokens each.
    assert (usage.steps, usage.drafted, usage.accepted) == (4, 12, 8)
    assert usage.accepted_per_position == [4, 4, 0]
    assert usage.queue_seconds >= 0 and usage.prefill_seconds > 0
    last = driver.snapshots[-1]
    assert (last.drafts, last.drafted, last.accepted, last.committed) == (4, 12, 8, 13)
    assert last.accepted_per_position == [4, 4, 0] and last.prefill_tokens == 3
    assert last.running == last.waiting == 0 and last.phase_seconds["verify"] > 0


def test_steps_are_counted_by_their_tokens():
    driver = Driver(spec=PLAIN, prefill_chunk=16)
    driver.run(generate("a", [2] * 40, max_tokens=3))
    # Chunks of 16, 16, and 8 with the first token; then two steps of a token.
    sizes = [16, 16, 9, 1, 1]
    last = driver.snapshots[-1]
    assert last.step_tokens == [sum(low < size <= high for size in sizes) for low, high in _edges()]
    assert (sum(last.step_tokens), last.prefill_tokens + last.committed) == (last.steps, sum(sizes))


def _edges() -> list[tuple[float, float]]:
    return list(zip((0, *STEP_TOKENS), (*STEP_TOKENS, float("inf")), strict=True))


def test_a_request_bounds_its_own_nodes():
    driver = Driver(spec=SpecConfig(planner="fixed", depth=3, topk=2, nodes=8))
    wide = generate("wide", [1], max_tokens=20)
    driver.run(wide, generate("two", [2], max_tokens=20, speculation=SpeculationParams(max_draft_tokens=2)))
    nodes = {tuple(sorted(plan.decode.nodes.tolist())) for plan in driver.worker.plans if plan.decode}
    assert (3, 8) in nodes and nodes <= {(3, 8), (3,), (8,)}
    alone = Driver(spec=SpecConfig(planner="fixed", depth=3, topk=2, nodes=8))
    alone.run(generate("two", [2], max_tokens=20, speculation=SpeculationParams(max_draft_tokens=2)))
    assert {plan.decode.depth for plan in alone.worker.plans if plan.decode} == {2}, "no level without nodes"


def test_under_load_rows_stop_drafting_for_good_and_without_a_wrong_page():
    spec = SpecConfig(planner="fixed", by_load=(LoadShape(rows=2, depth=3, nodes=4),))
    driver = Driver(fakes.capacity(rows=6, pages=200, max_length=128), spec=spec)
    first = [generate(f"early{i}", [i, 5, 5, 5, 5], max_tokens=100) for i in range(2)]
    driver.submit(*first)
    for _ in range(6):
        driver.iterate()
    late = [generate(f"late{i}", [i, 6, 6], max_tokens=60) for i in range(4)]
    driver.run(*late)
    driver.assert_answered(first + late)
    decodes = [plan for plan in driver.worker.plans if plan.decode]
    depth_zero = [plan for plan in decodes if plan.decode.depth == 0]
    assert any(plan.drafting.any() for plan in depth_zero), "rows keep their head for a while"
    assert sum(bool(plan.drafting.any()) for plan in depth_zero) < PATIENCE + 2
    assert not depth_zero[-1].drafting.any()
    # What the early rows wrote while the head followed is found by drafting rows, the rest is not.
    again = generate("again", [*first[0].prompt, *driver.reported["early0"].ids], max_tokens=4)
    driver.run(again)
    driver.assert_answered([again])
    cached = driver.reported["again"].end.usage.cached_tokens
    assert 4 <= cached < 96


def test_snapshots_come_about_once_a_second_and_at_idle():
    driver = Driver(spec=PLAIN, prefill_chunk=1)
    driver.run(generate("a", [1] * 60, max_tokens=1))
    driver.now += 0.5
    driver.run(*[generate(f"b{i}", [i] * 60, max_tokens=3) for i in range(5)])
    assert 4 <= len(driver.snapshots) <= 8
    assert driver.snapshots[-1].steps == len(driver.worker.plans)
    assert driver.snapshots[-1].pages_used == 0


def test_idle_until_something_comes_and_ready_says_what_fits():
    driver = Driver()
    assert driver.scheduler.idle
    driver.submit(Abort(id="unknown"))
    assert driver.scheduler.idle
    ready = driver.scheduler.ready()
    assert (ready.max_length, ready.vocabulary, ready.end_ids) == (64, 50, [1])
    driver.submit(generate("a", [1]))
    assert not driver.scheduler.idle


def test_a_planner_learns_how_long_answers_are_that_end_by_themselves():
    goodput, ended = planner(shapes=CHAINS), []
    goodput.end = ended.extend
    driver = Driver(spec=SPEC, planner=goodput)
    driver.submit(
        generate("a", [1], max_tokens=30), generate("b", [2], max_tokens=30), generate("c", [3], max_tokens=30)
    )
    driver.iterate()
    replies = driver.run(Abort(id="c"))
    assert sorted(ended) == sorted(replies[name].end.usage.completion_tokens for name in "ab")
