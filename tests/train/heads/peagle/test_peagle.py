"""P-EAGLE's training equals its serving: elements, who sees whom, what is dropped, parts, and the loss."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.engine.model.config import Rope
from aerie.train.heads.blocks import arranged
from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.head import Head, HeadShape
from aerie.train.heads.loss import Judged, looked_ahead, loss_mask
from aerie.train.heads.peagle.elements import Drop, blocks, elements, kept_anchors, segments
from aerie.train.heads.peagle.head import ParallelHead, ParallelShape, start_from
from aerie.train.heads.peagle.loss import Lesson, judge_parallel, outputs
from aerie.train.heads.unroll import rotate, turned, unroll

DEPTH, MASK = 4, 49
ALL = Drop(DEPTH, 1.0, 1.0)
IDS = torch.arange(0, 50, 2)
VOCABULARY = DraftVocabulary(IDS, 50, 1.0)


def head_of(layers: int = 2, *, norm_before_residual: bool = False) -> tuple[ParallelHead, Tensor]:
    torch.manual_seed(0)
    shape = HeadShape(24, 40, 4, 2, 8, 50, len(IDS), (2, 4, 5), 1e-6, Rope(), 64)
    shape = replace(shape, norm_before_residual=norm_before_residual)
    head = ParallelHead(ParallelShape(shape, layers, MASK)).double()
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return head, torch.randn(50, 24, dtype=torch.float64)


def lesson(rows: int = 2, columns: int = 13, *, packed: bool = False) -> Lesson:
    torch.manual_seed(1)
    answer = torch.rand(rows, columns) < 0.85
    documents = None
    if packed:
        documents = torch.tensor([[0] * 5 + [1] * 3 + [2] * (columns - 8)]).expand(rows, columns).contiguous()
    return Lesson(
        torch.randint(MASK, (rows, columns)),
        answer,
        torch.randn(rows, columns, 72, dtype=torch.float64),
        torch.randn(rows, columns, 50, dtype=torch.float64) * 3,
        documents,
    )


def inferred(head: ParallelHead, embedding: Tensor, ids: Tensor, taps: Tensor, anchor: int) -> Tensor:
    """As serving does: pairs 0 .. anchor, then mask slots, plainly causal -> outputs of the pair and the slots."""
    masks = DEPTH - 1
    embedded = torch.cat([embedding[ids[1 : anchor + 2]], head.mask_embedding.expand(masks, -1)])
    hidden = head.fc(torch.cat([taps[: anchor + 1], head.mask_hidden[0].expand(masks, -1)]))
    total = anchor + 1 + masks
    turns = tuple(part[None, None] for part in turned(total, 8, Rope(), taps))
    one = torch.zeros(total, dtype=torch.int64)
    whole = arranged(one, one, lambda q, k: k <= q, torch.float64)
    return head(embedded[None], hidden[None], turns, whole)[0, anchor:]  # type: ignore[no-any-return]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_elements_equal_what_serving_computes(layers: int, packed: bool) -> None:
    head, embedding = head_of(layers)
    given = lesson(packed=packed)
    kept = torch.ones(2, DEPTH, 13, dtype=torch.bool)
    found = elements(kept)
    output = outputs(head, embedding, given, found)
    place = {(int(a), int(d)): i for i, (a, d) in enumerate(zip(found.anchors[0], found.depths[0], strict=True))}
    bounds = [(0, 5), (5, 8), (8, 13)] if packed else [(0, 13)]
    for row, (begin, end) in itertools.product(range(2), bounds):
        for anchor in range(begin, end - 1):  # the last column of a document has no token after it
            ids, taps = given.ids[row, begin:end], given.taps[row, begin:end]
            expected = inferred(head, embedding, ids, taps, anchor - begin)
            for depth in range(DEPTH):
                assert (output[row, place[anchor, depth]] - expected[depth]).abs().max() < 1e-9


def test_what_is_dropped_and_padded_changes_no_other_output() -> None:
    head, embedding = head_of()
    given = lesson()
    whole = elements(torch.ones(2, DEPTH, 13, dtype=torch.bool))
    kept = kept_anchors(given.answer, Drop(DEPTH, 0.7, 0.2), torch.Generator().manual_seed(3))
    assert kept.flatten(1).sum(1).unique().numel() == 2  # the shorter row is padded
    some = elements(kept)
    everything, dropped = outputs(head, embedding, given, whole), outputs(head, embedding, given, some)
    for row in range(2):
        where = {
            (int(a), int(d)): i for i, (a, d) in enumerate(zip(whole.anchors[row], whole.depths[row], strict=True))
        }
        for i in some.real[row].nonzero().flatten().tolist():
            other = everything[row, where[int(some.anchors[row, i]), int(some.depths[row, i])]]
            assert (dropped[row, i] - other).abs().max() < 1e-9


def test_who_sees_whom_is_the_rule_itself() -> None:
    given = lesson(packed=True)
    assert given.documents is not None
    kept = kept_anchors(given.answer, Drop(DEPTH, 0.8, 0.2), torch.Generator().manual_seed(1), given.documents)
    found = elements(kept)
    size = found.anchors.shape[1]
    given_blocks = blocks(found, 13, torch.float64, given.documents)
    whole = torch.zeros(2 * size, 2 * size, dtype=torch.bool)
    for q, k, hidden in zip(given_blocks.queries, given_blocks.keys, given_blocks.hidden, strict=True):
        whole[q[:, None], k] |= hidden == 0
    allowed = torch.stack([whole[row * size : (row + 1) * size, row * size : (row + 1) * size] for row in range(2)])
    for row in range(2):
        listed = list(zip(found.anchors[row].tolist(), found.depths[row].tolist(), strict=True))
        number = given.documents[row].tolist()
        for (i, (qa, qd)), (j, (ka, kd)) in itertools.product(enumerate(listed), enumerate(listed)):
            if not found.real[row, i]:
                continue
            rule = (kd == 0 and ka <= qa) or (ka == qa and kd <= qd)
            rule = rule and number[qa] == number[ka] and bool(found.real[row, j])
            assert bool(allowed[row, i, j]) == rule, (qa, qd, ka, kd)


def test_conditional_drop_keeps_nested_anchors_at_its_rates() -> None:
    answer = torch.ones(8, 4000, dtype=torch.bool)
    kept = kept_anchors(answer, Drop(8, 0.7, 0.2), torch.Generator().manual_seed(0))
    assert bool(kept[:, 0].all())
    for depth in range(1, 8):
        valid = loss_mask(answer, depth)
        share = float(kept[:, depth].sum() / valid.sum())
        assert share == pytest.approx(max(0.7**depth, 0.2), abs=0.01)
        assert not bool((kept[:, depth] & ~kept[:, depth - 1]).any())  # whoever drafts deep drafts all before
        assert not bool((kept[:, depth] & ~valid).any())
    total = float(kept.sum() / answer.sum())
    assert total == pytest.approx(1 + 0.7 + 0.49 + 0.343 + 0.24 + 3 * 0.2, abs=0.05)  # instead of 8


def test_nothing_is_kept_across_documents() -> None:
    answer = torch.ones(1, 13, dtype=torch.bool)
    documents = torch.tensor([[0] * 5 + [1] * 3 + [2] * 5])
    kept = kept_anchors(answer, ALL, torch.Generator(), documents)
    # Anchor a at depth d predicts column a + d + 2, which has to be in a's own document.
    for depth in range(1, DEPTH):
        expected = [a + depth + 2 < 13 and documents[0, a] == documents[0, a + depth + 2] for a in range(13)]
        assert kept[0, depth].tolist() == expected


def run(head: ParallelHead, embedding: Tensor, given: Lesson, drop: Drop, limit: int | None) -> list[Judged]:
    head.zero_grad()
    found = []
    for judged in judge_parallel(
        head, embedding, given, VOCABULARY, drop, torch.Generator().manual_seed(5), limit=limit
    ):
        if judged.loss.requires_grad:
            judged.loss.backward()
        found.append(judged)
    return found


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("limit", [14, 15, 17])
def test_parts_of_a_sequence_add_up_to_the_whole(limit: int, packed: bool) -> None:
    head, embedding = head_of()
    given = lesson(packed=packed)
    drop = Drop(DEPTH, 0.95, 0.9)
    (whole,) = run(head, embedding, given, drop, None)
    gradients = [weight.grad.clone() for weight in head.parameters() if weight.grad is not None]
    parts = run(head, embedding, given, drop, limit)
    assert len(parts) > 1
    assert torch.stack([part.loss for part in parts]).sum().item() == pytest.approx(whole.loss.item(), abs=1e-12)
    for counts in ("reached", "right", "columns"):
        assert torch.equal(sum(getattr(part, counts) for part in parts), getattr(whole, counts))
    for weight, gradient in zip(head.parameters(), gradients, strict=True):
        assert weight.grad is not None and (weight.grad - gradient).abs().max() < 1e-10


def test_parts_keep_to_their_limit_and_cover_each_anchor_once() -> None:
    kept = kept_anchors(torch.ones(2, 200, dtype=torch.bool), Drop(8, 0.7, 0.2), torch.Generator().manual_seed(0))
    limit = 260
    parts = list(segments(kept, limit))
    assert torch.stack([answered for _, answered in parts]).sum(0).tolist() == [1] * 200
    for part, _ in parts:
        assert int(part.flatten(1).sum(1).max()) <= limit
    assert int(kept.flatten(1).sum(1).max()) > 2 * limit


def test_the_loss_equals_a_sum_over_elements() -> None:
    head, embedding = head_of()
    given = lesson()
    (judged,) = run(head, embedding, given, ALL, None)
    terms, right = [], [0] * DEPTH
    for row in range(2):
        for anchor in range(12):
            alive = True
            output = inferred(head, embedding, given.ids[row], given.taps[row], anchor)
            for depth in range(DEPTH):
                if not all(anchor + i < 13 and given.answer[row, anchor + i] for i in range(1, depth + 3)):
                    break
                goal = given.logits[row, anchor + depth + 1]
                drafted = head.logits(output[depth])
                if int(goal.argmax()) in IDS.tolist():
                    terms.append(-(goal[IDS].softmax(-1) * drafted.log_softmax(-1)).sum())
                alive = alive and int(IDS[drafted.argmax()]) == int(goal.argmax())
                right[depth] += alive
    assert judged.loss.item() == pytest.approx(torch.stack(terms).mean().item(), abs=1e-9)
    assert judged.right.tolist() == right


def test_depths_are_weighed_by_the_decay() -> None:
    head, embedding = head_of()
    given = lesson()

    def loss(depth: int, decay: float) -> float:
        drop = Drop(depth, 1.0, 1.0)
        found = judge_parallel(head, embedding, given, VOCABULARY, drop, torch.Generator(), decay=decay, limit=20)
        return sum(part.loss.item() for part in found)

    first = loss(1, 1.0)
    assert loss(DEPTH, 1e-9) == pytest.approx(first, abs=1e-6)
    draftable = VOCABULARY.t2d[given.logits.argmax(-1)]
    counts = [int((loss_mask(given.answer, d) & looked_ahead(draftable, d + 1)).sum()) for d in range(2)]
    both = loss(2, 1.0)
    deeper = (both * sum(counts) - first * counts[0]) / counts[1]
    assert loss(2, 0.5) == pytest.approx((first * counts[0] + 0.5 * deeper * counts[1]) / (counts[0] + 0.5 * counts[1]))


def test_power_a_slot_that_sees_a_later_pair_is_noticed() -> None:
    """The planted bug: anchors of slots are compared by their position, as if slots were pairs."""
    head, embedding = head_of()
    given = lesson()
    found = elements(torch.ones(2, DEPTH, 13, dtype=torch.bool))
    right = outputs(head, embedding, given, found)
    changed = given.taps.clone()
    changed[:, 6] += 1
    moved = (outputs(head, embedding, Lesson(given.ids, given.answer, changed, given.logits), found) - right).abs()
    where = moved.amax(-1)[0] > 1e-12
    assert (
        where.tolist() == (found.anchors[0] >= 6).tolist()
    )  # slots of anchors before 6 reach past it, and do not see it


def test_the_mask_learns_its_embedding_and_hidden_state() -> None:
    head, embedding = head_of()
    run(head, embedding, lesson(), ALL, None)
    assert head.mask_hidden.grad is not None and head.mask_hidden.grad.abs().sum() > 0
    assert head.mask_embedding.grad is not None and head.mask_embedding.grad.abs().sum() > 0


def test_rotations_are_those_of_the_other_head() -> None:
    cosines, sines = turned(3, 8, Rope(), torch.zeros(1, dtype=torch.float64))
    x = torch.randn(8, dtype=torch.float64)
    assert torch.allclose(rotate(x, cosines[0], sines[0]), x)


@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_a_head_begun_from_an_eagle3_one_reads_pairs_as_it_does(norm_before_residual: bool) -> None:
    parallel, embedding = head_of(layers=2, norm_before_residual=norm_before_residual)
    torch.manual_seed(2)
    single = Head(parallel.shape.head).double()
    start_from(parallel, single.state_dict())
    given = lesson()
    found = elements(kept_anchors(given.answer, Drop(1, 1.0, 1.0), torch.Generator()))
    expected = next(iter(unroll(single, embedding, given.ids, given.taps, 1)))
    torch.testing.assert_close(outputs(parallel, embedding, given, found), expected)


def test_what_is_kept_does_not_learn() -> None:
    parallel, embedding = head_of(layers=2)
    start_from(parallel, Head(parallel.shape.head).double().state_dict(), kept=True)
    generator = torch.Generator().manual_seed(0)
    for judged in judge_parallel(parallel, embedding, lesson(), VOCABULARY, Drop(3, 1.0, 1.0), generator):
        judged.loss.backward()
    learning = {name for name, weight in parallel.named_parameters() if weight.grad is not None}
    new = {name for name, _ in parallel.named_parameters() if name.startswith(("mask_", "layers.1."))}
    assert learning == new


def test_a_head_of_other_sizes_is_no_start() -> None:
    parallel, _ = head_of()
    weights = Head(parallel.shape.head).state_dict()
    with pytest.raises(ConfigError, match=r"lm_head.weight should have shape \(25, 24\); the head has shape \(7, 24\)"):
        start_from(parallel, weights | {"lm_head.weight": torch.zeros(7, 24)})
    del weights["norm.weight"]
    with pytest.raises(ConfigError, match=r"norm.weight .* the head has none"):
        start_from(parallel, weights)
