"""One request's outputs as messages: what is new, what was drafted, how it ended."""

from typing import Any

from aerie.bridge.stream import TokenStream
from aerie.contracts.messages import Failed, Finished, Generate
from aerie.contracts.sampling import SamplingParams


def course_of(*, depth: int = 0, logprobs: int = -1) -> TokenStream:
    sampling = SamplingParams(logprobs=logprobs)
    return TokenStream(Generate(id="a", prompt=[1, 2, 3], sampling=sampling), depth=depth, now=10.0)


def output(ids: list[int], reason: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    return {"output_ids": ids, "meta_info": {"finish_reason": reason, "cached_tokens": 2, **meta}}


def test_each_output_adds_what_is_new() -> None:
    stream = course_of()
    growing = [5]
    assert [one.ids for one in stream.take(output(growing))] == [[5]]
    assert stream.started
    growing += [6]
    assert [one.ids for one in stream.take(output(growing))] == [[6]]
    assert stream.take(output(growing)) == [] and stream.ended is None
    growing += [7, 8]  # two plain steps that came together
    (last,) = stream.take(output(growing, {"type": "length", "length": 4}))
    assert (last.ids, last.accepted) == ([7, 8], 0)
    assert isinstance(stream.ended, Finished) and stream.ended.reason == "length"
    usage = stream.ended.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.steps) == (3, 4, 2, 3)


def test_the_first_token_is_nobodys_guess() -> None:
    stream = course_of(depth=3)
    first, rest = stream.take(output([5, 6, 7]))
    assert (first.ids, first.accepted) == ([5], 0)
    assert (rest.ids, rest.accepted) == ([6, 7], 1)


def test_outputs_of_more_than_one_step_have_a_bonus_for_each() -> None:
    stream = course_of(depth=2)
    stream.take(output([5]))
    (one,) = stream.take(output([5, 6, 7, 8]))
    assert one.accepted == 2
    (several,) = stream.take(output([5, 6, 7, 8, 9, 10, 11, 12]))  # at most 3 a step: at least two of them
    assert several.accepted == 2


def test_the_account_of_drafts_is_sglangs() -> None:
    stream = course_of(depth=3)
    meta = {
        "spec_verify_ct": 5,
        "spec_num_proposed_drafts": 25,
        "spec_num_correct_drafts": 7,
        "spec_correct_drafts_histogram": [1, 2, 1, 1],  # steps that accepted 0, 1, 2, 3
        "num_retractions": 1,
    }
    stream.take(output([5, 6], {"type": "stop", "matched": 6}, **meta), now=12.5)
    ended = stream.ended
    assert isinstance(ended, Finished)
    assert (ended.reason, ended.stop_id) == ("stop", 6)
    usage = ended.usage
    assert (usage.steps, usage.drafted, usage.accepted, usage.preemptions) == (5, 25, 7, 1)
    assert usage.accepted_per_position == [4, 2, 1] and sum(usage.accepted_per_position) == usage.accepted
    assert usage.prefill_seconds == 2.5


def test_aborts_and_refusals() -> None:
    stream = course_of()
    stream.take(output([5], {"type": "abort", "message": "Abort in waiting queue"}))
    assert isinstance(stream.ended, Finished) and stream.ended.reason == "abort"
    stream = course_of()
    assert stream.take(output([], {"type": "abort", "status_code": 400, "message": "too long"})) == []
    assert stream.ended == Failed(id="a", code="engine_refused", message="too long", status=400)


def test_logprobs_go_with_their_tokens() -> None:
    stream = course_of(logprobs=2)
    own = [(-0.1, 5, None), (-0.2, 6, None)]
    best = [[(-0.1, 5, None), (-3.0, 9, None)], [(-0.05, 8, None), (-0.2, 6, None)]]
    (first,) = stream.take(output([5], output_token_logprobs=own[:1], output_top_logprobs=best[:1]))
    (second,) = stream.take(output([5, 6], output_token_logprobs=own, output_top_logprobs=best))
    assert first.logprobs is not None and first.logprobs[0].logprob == -0.1
    assert second.logprobs is not None
    assert (second.logprobs[0].rank_ids, second.logprobs[0].rank_logprobs) == ([8, 6], [-0.05, -0.2])


def test_logprobs_of_the_chosen_alone() -> None:
    (first,) = course_of(logprobs=0).take(output([5], output_token_logprobs=[(-0.1, 5, None)]))
    assert first.logprobs is not None and first.logprobs[0].rank_ids == []
