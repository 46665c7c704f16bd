"""Sums over requests, as /metrics shows them."""

from aerie.bridge.tally import Load, Tally
from aerie.contracts.messages import Tokens, Usage


def test_requests_add_up() -> None:
    tally = Tally(depth=2)
    tally.commit(Tokens(id="a", ids=[5, 6], accepted=1))
    drafted = Usage(
        prompt_tokens=10,
        completion_tokens=4,
        cached_tokens=4,
        steps=3,
        drafted=9,
        accepted=2,
        accepted_per_position=[1, 1],
    )
    for _ in range(2):
        tally.end(drafted)
    tally.end(Usage(prompt_tokens=1, completion_tokens=5, steps=4, preemptions=1))  # a plain one has no drafts
    seen = tally.snapshot(Load(running=5, tokens_used=7, tokens_total=9), still_open=3)
    assert (seen.running, seen.waiting, seen.pages_used, seen.pages_total) == (3, 0, 7, 9)
    assert (seen.prefix_queries, seen.prefix_hits, seen.prefill_tokens) == (21, 8, 13)
    assert (seen.drafts, seen.drafted, seen.accepted, seen.accepted_per_position) == (6, 18, 4, [2, 2])
    assert (seen.committed, seen.preemptions) == (2, 1)
