"""Products in bf16 teach a head what products in fp32 do, and rows of any conversations give few shapes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from aerie.engine.model.config import Rope
from aerie.train.heads.blocks import arranged
from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.head import Head, HeadShape
from aerie.train.heads.loss import judge
from aerie.train.heads.peagle.elements import Drop
from aerie.train.heads.peagle.head import ParallelHead, ParallelShape
from aerie.train.heads.peagle.loss import Lesson, judge_parallel
from aerie.train.heads.unroll import unroll

_VOCABULARY = DraftVocabulary(torch.arange(30), 50, 1.0)
_DEPTH = 3


def _recurrent(lesson: Lesson, embedding: Tensor) -> tuple[nn.Module, Callable[[], Tensor]]:
    head = Head(_shape(norms=True))

    def loss() -> Tensor:
        outputs = unroll(head, embedding, lesson.ids, lesson.taps, _DEPTH, lesson.documents)
        return judge(head, outputs, lesson.logits, lesson.answer, _VOCABULARY, documents=lesson.documents).loss

    return head, loss


def _parallel(lesson: Lesson, embedding: Tensor) -> tuple[nn.Module, Callable[[], Tensor]]:
    head = ParallelHead(ParallelShape(_shape(norms=False), 2, 49))

    def loss() -> Tensor:
        drop, generator = Drop(_DEPTH, 1.0, 1.0), torch.Generator().manual_seed(0)
        return next(judge_parallel(head, embedding, lesson, _VOCABULARY, drop, generator)).loss

    return head, loss


def _shape(*, norms: bool) -> HeadShape:
    return HeadShape(32, 48, 4, 2, 16, 50, 30, (2, 4, 5), 1e-6, Rope(), 128, norms, norms)


def _lesson() -> Lesson:
    documents = torch.tensor([[0] * 20 + [1] * 33 + [2] * 7])
    return Lesson(
        torch.randint(49, (1, 60)),
        torch.rand(1, 60) < 0.9,
        torch.randn(1, 60, 96),
        torch.randn(1, 60, 50) * 3,
        documents,
    )


@pytest.mark.parametrize("kind", [_recurrent, _parallel])
def test_products_in_bf16_give_the_loss_and_the_gradients_of_fp32(
    kind: Callable[[Lesson, Tensor], tuple[nn.Module, Callable[[], Tensor]]],
) -> None:
    """bf16 keeps 8 bits: a rounding is 0.4% at most, and a step rounds some ten times one after another."""
    torch.manual_seed(0)
    head, loss = kind(_lesson(), torch.randn(50, 32))
    for weight in head.parameters():
        if weight.ndim == 2:
            nn.init.normal_(weight, std=0.15)

    def run(*, rounded: bool) -> tuple[Tensor, dict[str, Tensor]]:
        head.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
            found = loss()
        found.backward()
        return found.detach(), {name: weight.grad.clone() for name, weight in head.named_parameters()}  # type: ignore[union-attr]

    (exact, expected), (near, gradients) = run(rounded=False), run(rounded=True)
    assert near.dtype == torch.float32 and 0 < (near - exact).abs() < 0.01 * exact
    for name, gradient in expected.items():
        assert gradients[name].dtype == torch.float32
        assert (gradients[name] - gradient).norm() < 0.05 * gradient.norm(), name


def test_conversations_that_share_a_block_have_its_shape() -> None:
    numbers = torch.tensor([0] * 50 + [1] * 14 + [2] * 70 + [3] * 58)
    found = arranged(numbers, numbers, lambda q, k: k <= q, torch.float32)
    assert found.hidden.shape == (2, 128, 128)  # 50 + 14 + 58, and 70
    seen = torch.zeros(len(numbers), len(numbers), dtype=torch.bool)
    for query, place in enumerate(found.back.tolist()):
        block, row = divmod(place, 128)
        assert found.queries[block, row] == query
        seen[query, found.keys[block, found.hidden[block, row] == 0]] = True
    causal = torch.ones_like(seen).tril()
    assert torch.equal(seen, causal & (numbers[:, None] == numbers))
