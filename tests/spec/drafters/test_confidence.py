"""Chains that end where the head doubts them: fewer guesses, the same tokens."""

import math

import pytest
import torch

from aerie.engine.bindings import Kernels
from aerie.spec.drafters.confidence import Confidence
from aerie.spec.trees.ranking import log_likelihood
from tests.engine.rounds import Rounds
from tests.native.cpp_here import CPP, needs_cpp
from tests.spec.conftest import MakeWorker
from tests.spec.test_worker import PROMPTS, plain_tokens, run, sampling

CHAIN = {"depth": 5, "topk": 1, "nodes": 6}
SURE = 0.999
"""More than a random head ever is."""


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("threshold", [0.02, 0.1, SURE])
def test_tokens_equal_those_of_plain_decoding(make_worker: MakeWorker, temperature: float, threshold: float) -> None:
    params = [sampling(row, temperature) for row in range(len(PROMPTS))]
    rows = run(make_worker(confidence_threshold=threshold), params, drafting=[True, True, False, True], **CHAIN)
    assert [row.out for row in rows] == plain_tokens(make_worker, params)


@pytest.mark.parametrize(("threshold", "drafted"), [(0.0, 5), (SURE, 0)])
def test_a_guess_that_is_doubted_is_not_verified(make_worker: MakeWorker, threshold: float, drafted: int) -> None:
    rounds = Rounds(make_worker(confidence_threshold=threshold))
    rows = [rounds.add(row, list(PROMPTS[row]), sampling(row, 0.0), drafting=row != 1) for row in range(3)]
    output = rounds.decode(rows, **CHAIN)
    assert output.drafted.tolist() == [drafted, 0, drafted]
    assert output.token_ids.shape == (3, 6), "the answer is as wide as the plan said"


def test_trees_are_drafted_whole(make_worker: MakeWorker) -> None:
    rounds = Rounds(make_worker(confidence_threshold=SURE))
    row = rounds.add(0, list(PROMPTS[0]), sampling(0, 0.0), drafting=True)
    assert rounds.decode([row], depth=3, topk=2, nodes=7).drafted.tolist() == [6]


def test_each_row_leaves_the_draft_once_its_path_is_doubted() -> None:
    doubt = Confidence(math.log(0.5), torch.tensor([4, 4, 1, 4]))
    assert doubt.goes_on(torch.tensor([0.9, 0.1, 0.9, 0.9]).log())
    assert doubt.goes_on(torch.tensor([0.6, 1.0, 0.9, 0.5]).log())  # 0.54, 0.1, 0.81 and 0.45
    assert doubt.levels.tolist() == [2, 0, 1, 1], "the third row was to draft one level"
    assert not doubt.goes_on(torch.tensor([0.9, 1.0, 1.0, 2.0]).log())  # 0.486, and 0.9 that comes too late
    assert doubt.levels.tolist() == [2, 0, 1, 1]


def test_sure_rows_end_where_they_were_to_end() -> None:
    doubt, sure = Confidence(math.log(0.5), torch.tensor([1, 2])), torch.zeros(2)
    assert doubt.goes_on(sure) and not doubt.goes_on(sure)
    assert doubt.levels.tolist() == [1, 2]


def test_a_row_without_a_probability_is_doubted() -> None:
    doubt = Confidence(math.log(0.5), torch.tensor([2, 2]))
    assert doubt.goes_on(torch.tensor([math.nan, 0.0])) and doubt.levels.tolist() == [0, 1]


@pytest.mark.parametrize("count", [9, 16, 70])
def test_a_path_is_as_likely_as_its_head_says_at_the_rows_temperature(kernels: Kernels, count: int) -> None:
    torch.manual_seed(3)
    logits, ids, temperatures = 5 * torch.randn(2, count), torch.tensor([4, 7]), torch.tensor([[0.7], [1.0]])
    for given, scaled in ((None, logits), (temperatures, logits / temperatures)):
        wanted = scaled.log_softmax(-1)[torch.arange(2), ids]
        torch.testing.assert_close(kernels[log_likelihood](logits, ids, given), wanted)


@needs_cpp
def test_a_cpu_s_steps_doubt_bf16_heads_alike() -> None:
    """Whole steps hold such logits in fp32, so their fallback has to sum in fp32 too."""
    torch.manual_seed(4)
    logits, ids = (5 * torch.randn(3, 70)).bfloat16(), torch.tensor([4, 7, 0])
    wide = CPP[log_likelihood](logits.float(), ids, None)
    assert torch.equal(CPP[log_likelihood](logits, ids, None), wide)
