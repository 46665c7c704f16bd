"""The loss counts exactly the drafts that serving will make."""

import pytest
import torch
from torch import Tensor

from aerie.engine.model.config import Rope
from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.head import Head, HeadShape
from aerie.train.heads.loss import acceptance_length, judge, loss_mask

#        bos user q  asst A  B  end user q  asst C  end
_TURNS = [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1]


def _mask(step: int) -> list[int]:
    return loss_mask(torch.tensor([_TURNS], dtype=torch.bool), step)[0].int().tolist()


def test_the_mask_of_two_turns() -> None:
    # Step 0 at column t reads t+1 and predicts t+2: both are answer tokens for (A -> B), (B -> end) and (C -> end).
    assert _mask(0) == [0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0]
    assert _mask(1) == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert _mask(2) == [0] * 12


def test_the_mask_never_reaches_past_the_row() -> None:
    everything = torch.ones(1, 6, dtype=torch.bool)
    assert [int(loss_mask(everything, step).sum()) for step in range(7)] == [4, 3, 2, 1, 0, 0, 0]


def _case() -> tuple[Head, list[Tensor], Tensor, Tensor, DraftVocabulary]:
    torch.manual_seed(0)
    head = Head(HeadShape(8, 8, 1, 1, 8, 10, 6, (2, 4, 5), 1e-6, Rope(), 32)).double()
    vocabulary = DraftVocabulary(torch.tensor([0, 1, 3, 4, 7, 9]), 10, 1.0)
    outputs = [torch.randn(2, 12, 8, dtype=torch.float64) for _ in range(2)]
    answer = torch.tensor([_TURNS, _TURNS[::-1]], dtype=torch.bool)
    return head, outputs, torch.randn(2, 12, 10, dtype=torch.float64) * 3, answer, vocabulary


def test_the_loss_equals_a_sum_over_positions() -> None:
    head, outputs, logits, answer, vocabulary = _case()
    expected = torch.zeros((), dtype=torch.float64)
    for step, output in enumerate(outputs):
        terms = []
        for row in range(2):
            for t in range(12 - 2 - step):
                goal = logits[row, t + 1 + step]
                inside = all(answer[row, t + ahead] for ahead in range(1, 3 + step))
                if inside and int(goal.argmax()) in vocabulary.draft_to_target.tolist():
                    q = goal[vocabulary.draft_to_target].softmax(-1)
                    terms.append(-(q * head.logits(output[row, t]).log_softmax(-1)).sum())
        expected = expected + torch.stack(terms).mean()
    judged = judge(head, outputs, logits, answer, vocabulary)
    assert torch.allclose(judged.loss, expected, atol=1e-12)


def test_undraftable_tokens_are_misses_without_gradient() -> None:
    head, outputs, logits, answer, vocabulary = _case()
    logits[..., 2] = 100.0  # an id that the head cannot draft is always the likeliest
    outputs = [output.requires_grad_() for output in outputs]
    judged = judge(head, outputs, logits, answer, vocabulary)
    assert judged.right.sum() == 0 and judged.reached[0] == loss_mask(answer, 0).sum()
    assert judged.loss == 0


def test_a_later_step_counts_only_where_the_earlier_were_right() -> None:
    head, outputs, logits, answer, vocabulary = _case()
    judged = judge(head, outputs, logits, answer, vocabulary)
    assert judged.reached[1] <= judged.right[0]


def test_acceptance_length_of_known_counts() -> None:
    assert acceptance_length(torch.tensor([10, 8]), torch.tensor([8, 4])) == pytest.approx(2.2)
