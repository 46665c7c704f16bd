"""Training-time test equals drafting step by step with a KV cache: mask, positions and feedback."""

import pytest
import torch
from torch import Tensor

from aerie.engine.model.config import Rope
from aerie.engine.model.rope import frequencies
from aerie.train.heads.head import Head, HeadShape, default_boundaries
from aerie.train.heads.unroll import rotate, unroll

_STEPS = 4
_ROPE = Rope()


def _head() -> tuple[Head, Tensor]:
    torch.manual_seed(0)
    shape = HeadShape(24, 40, 4, 2, 8, 50, 30, (2, 4, 5), 1e-6, _ROPE, 64)
    head = Head(shape).double()
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return head, torch.randn(50, 24, dtype=torch.float64)


def _rotated(x: Tensor, position: int) -> Tensor:
    """One vector [.., size] turned by an explicit rotation of each pair (i, i + size / 2)."""
    half = x.shape[-1] // 2
    angles = position * frequencies(_ROPE, 2 * half).double()
    turned = torch.polar(torch.ones_like(angles), angles) * torch.complex(x[..., :half], x[..., half:])
    return torch.cat([turned.real, turned.imag], -1)


def _rollout(head: Head, embedding: Tensor, ids: Tensor, taps: Tensor, column: int) -> list[Tensor]:
    """Extends pairs 0 .. column one after another, then drafts on, fed the same tokens; outputs at that column."""
    keys: list[Tensor] = []
    values: list[Tensor] = []

    def run(token: int, hidden: Tensor, position: int) -> Tensor:
        q, k, v = head.project(embedding[token].view(1, 1, -1), hidden.view(1, 1, -1))
        keys.append(_rotated(k[0, :, 0], position).repeat_interleave(2, 0))
        values.append(v[0, :, 0].repeat_interleave(2, 0))
        scores = torch.stack([(_rotated(q[0, :, 0], position) * key).sum(-1) for key in keys]) / 8**0.5
        mixed = (scores.softmax(0)[..., None] * torch.stack(values)).sum(0)
        return head.finish(hidden.view(1, 1, -1), mixed.view(1, 4, 1, 8)).flatten()

    for j in range(column + 1):
        hidden = run(int(ids[j + 1]), head.fuse(taps[j]), j)
    outputs = [hidden]
    for step in range(1, _STEPS):
        outputs.append(run(int(ids[column + 1 + step]), outputs[-1], column + step))
    return outputs


def test_training_time_test_equals_a_rollout() -> None:
    head, embedding = _head()
    ids, taps = torch.randint(50, (2, 11)), torch.randn(2, 11, 72, dtype=torch.float64)
    dense = list(unroll(head, embedding, ids, taps, _STEPS))
    for row in range(2):
        for column in range(11 - _STEPS):
            for step, output in enumerate(_rollout(head, embedding, ids[row], taps[row], column)):
                assert (dense[step][row, column] - output).abs().max() < 1e-9


def test_training_time_test_of_packed_rows_equals_a_rollout_of_each_conversation() -> None:
    head, embedding = _head()
    bounds = [(0, 6), (6, 13), (13, 19)]
    documents = torch.tensor([[n for n, (begin, end) in enumerate(bounds) for _ in range(begin, end)]])
    ids, taps = torch.randint(50, (1, 19)), torch.randn(1, 19, 72, dtype=torch.float64)
    packed = list(unroll(head, embedding, ids, taps, _STEPS, documents))
    forgetful = list(unroll(head, embedding, ids, taps, _STEPS))
    for begin, end in bounds:
        for column in range(end - begin - _STEPS):
            rollout = _rollout(head, embedding, ids[0, begin:end], taps[0, begin:end], column)
            for step, output in enumerate(rollout):
                assert (packed[step][0, begin + column] - output).abs().max() < 1e-9
                if begin:  # the planted bug: a row that is one conversation to the head
                    assert (forgetful[step][0, begin + column] - output).abs().max() > 1e-3


@pytest.mark.parametrize("packed", [False, True])
def test_columns_that_do_not_draft_are_left_out_and_change_no_other(packed: bool) -> None:
    """Outputs and gradients of two rows, of which one has a conversation without any draft."""
    head, embedding = _head()
    ids, taps = torch.randint(50, (2, 19)), torch.randn(2, 19, 72, dtype=torch.float64)
    drafting = torch.zeros(2, 19, dtype=torch.bool)
    drafting[0, 3:7] = drafting[1, 9:11] = True
    documents = torch.tensor([[0] * 6 + [1] * 6 + [2] * 7, [4] * 11 + [5] * 8]) if packed else None

    def run(some: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        outputs = torch.stack(list(unroll(head, embedding, ids, taps, _STEPS, documents, some)))
        head.zero_grad()
        (outputs * drafting[..., None]).pow(2).sum().backward()
        return outputs, [weight.grad.clone() for weight in head.parameters() if weight.grad is not None]

    (whole, expected), (some, gradients) = run(None), run(drafting)
    assert (whole - some)[:, drafting].abs().max() < 1e-9 and some[:, ~drafting].abs().max() == 0
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-7) for a, b in zip(expected, gradients, strict=True))
    assert run(torch.zeros_like(drafting))[0].abs().max() == 0


def test_padding_on_the_right_changes_nothing() -> None:
    head, embedding = _head()
    ids, taps = torch.randint(50, (1, 16)), torch.randn(1, 16, 72, dtype=torch.float64)
    whole = list(unroll(head, embedding, ids, taps, _STEPS))
    padded = list(
        unroll(
            head,
            embedding,
            torch.where(torch.arange(16) < 10, ids, 0),
            taps * (torch.arange(16) < 10)[None, :, None],
            _STEPS,
        )
    )
    short = list(unroll(head, embedding, ids[:, :10], taps[:, :10], _STEPS))
    for step in range(_STEPS):
        valid = 10 - 1 - step
        for other in (whole, padded):
            assert (other[step][:, :valid] - short[step][:, :valid]).abs().max() < 1e-9


def test_a_later_step_does_not_see_other_columns_drafts() -> None:
    """Power control: outputs of step 1 at column t depend on the tap at t, never on taps after t."""
    head, embedding = _head()
    ids, taps = torch.randint(50, (1, 8)), torch.randn(1, 8, 72, dtype=torch.float64)
    before = list(unroll(head, embedding, ids, taps, 3))
    changed = taps.clone()
    changed[:, 4] += 1
    after = list(unroll(head, embedding, ids, changed, 3))
    for step in range(3):
        moved = (before[step] - after[step]).abs().amax(-1)[0] > 1e-12
        assert moved.tolist() == [False] * 4 + [True] * 4


def test_gradients_flow_through_the_recurrence() -> None:
    head, embedding = _head()
    ids, taps = torch.randint(50, (1, 8)), torch.randn(1, 8, 72, dtype=torch.float64, requires_grad=True)
    list(unroll(head, embedding, ids, taps, 3))[2][0, 2].sum().backward()
    assert taps.grad is not None
    assert taps.grad[0, 2].abs().sum() > 0 and taps.grad[0, 3:].abs().sum() == 0


def test_rotation_by_nothing_is_the_identity() -> None:
    x = torch.randn(1, 1, 1, 8)
    assert torch.equal(rotate(x, torch.ones(1, 8), torch.zeros(1, 8)), x)


def test_too_shallow_targets_have_no_taps() -> None:
    assert default_boundaries(12) == (2, 6, 9)
    with pytest.raises(ValueError, match="at least 8"):
        default_boundaries(7)
