"""Packed rows: every document once an epoch, never too long, and as if each conversation stood alone."""

import torch

from aerie.engine.model.config import Rope
from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.head import Head, HeadShape
from aerie.train.heads.loss import judge, loss_mask
from aerie.train.heads.objectives import OBJECTIVES
from aerie.train.heads.unroll import unroll
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.packing import Rows, rows_of_epoch
from aerie.train.pipeline.data.shards import Shards
from tests.train.pipeline.tiny import run_to

LENGTHS = [[5, 9, 30, 3], [8, 8, 8], [2]]
SHAPE = HeadShape(
    hidden=16,
    intermediate=24,
    heads=2,
    kv_heads=1,
    head_dim=8,
    vocabulary=50,
    draft_vocabulary=30,
    boundaries=(2, 4, 5),
    eps=1e-5,
    rope=Rope(),
    max_positions=64,
    tap_norms=True,
    norm_output=True,
)


def test_an_epoch_has_every_document_once_in_rows_that_fit() -> None:
    rows = rows_of_epoch(LENGTHS, tokens=16, seed=0, epoch=0)
    places = [place for row in rows for place in row]
    assert sorted(places) == [(shard, n) for shard, lengths in enumerate(LENGTHS) for n in range(len(lengths))]
    for row in rows:
        assert len(row) == 1 or sum(LENGTHS[shard][n] for shard, n in row) <= 16
    assert rows == rows_of_epoch(LENGTHS, tokens=16, seed=0, epoch=0)
    assert rows != rows_of_epoch(LENGTHS, tokens=16, seed=0, epoch=1)
    assert len(rows) <= 7


def test_rows_of_a_part_hold_its_documents_alone() -> None:
    """Documents are counted over all shards."""
    numbered = [(shard, place) for shard, lengths in enumerate(LENGTHS) for place in range(len(lengths))]
    last = len(numbered) - 1
    rows = rows_of_epoch(LENGTHS, tokens=16, seed=0, epoch=0, documents=range(1, last))
    assert sorted(place for row in rows for place in row) == numbered[1:last]


def test_rows_hold_what_the_shards_hold(shared: PipelineConfig) -> None:
    shards = Shards(run_to(shared, "features"))
    rows = Rows(shards, tokens=128, seed=0, compute=None)
    count = rows.of_epochs(1)
    assert rows.of_epochs(3) >= 3 * count - 3
    seen = [rows.row(number) for number in range(count)]
    assert sum(row.ids.shape[1] for row in seen) == sum(map(sum, shards.lengths))
    for row in seen:
        columns = row.ids.shape[1]
        assert columns <= 128 and row.taps.shape == (1, columns, 96) and row.final.shape == (1, columns, 32)
        assert row.documents[0].diff().min() >= 0 and row.answer.any()
    late = Rows(shards, tokens=128, seed=0, compute=None).row(count + 1)  # without having read what came before
    assert torch.equal(late.ids, rows.row(count + 1).ids)


def packed() -> tuple[Head, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A head with random weights; embedding, ids, taps, documents and answers of three conversations in a row."""
    torch.manual_seed(1)
    head = Head(SHAPE).double()
    with torch.no_grad():
        for weight in head.parameters():
            weight.normal_(std=0.5)
    lengths = (7, 5, 9)
    ids, taps = torch.randint(50, (1, sum(lengths))), torch.randn(1, sum(lengths), 48, dtype=torch.float64)
    documents = torch.tensor([[n for n, length in enumerate(lengths) for _ in range(length)]])
    answer = torch.tensor([[at >= 2 for length in lengths for at in range(length)]])
    return head, torch.randn(50, 16, dtype=torch.float64), ids, taps, documents, answer


def test_packed_conversations_are_as_if_alone() -> None:
    """Outputs wherever a draft counts, and the loss of every objective, to 1e-9 in fp64."""
    head, embedding, ids, taps, documents, answer = packed()
    logits = torch.randn(1, ids.shape[1], 50, dtype=torch.float64)
    vocabulary = DraftVocabulary(torch.arange(30), 50, 1.0)
    whole = list(unroll(head, embedding, ids, taps, 3, documents))
    parts = [documents[0] == n for n in range(3)]
    for part in parts:
        alone = unroll(head, embedding, ids[:, part], taps[:, part], 3)
        for step, output in enumerate(alone):
            counted = loss_mask(answer[:, part], step)
            assert counted.any() == (step < int(part.sum()) - 3)
            assert torch.allclose(whole[step][:, part][counted], output[counted], atol=1e-9)
    for objective in OBJECTIVES.values():
        options = {"decay": 0.8, "objective": objective}
        together = judge(head, whole, logits, answer, vocabulary, documents=documents, **options)
        alone_ = [
            judge(
                head,
                list(unroll(head, embedding, ids[:, part], taps[:, part], 3)),
                logits[:, part],
                answer[:, part],
                vocabulary,
                **options,
            )
            for part in parts
        ]
        assert torch.equal(together.columns, sum(one.columns for one in alone_))
        assert torch.equal(together.right, sum(one.right for one in alone_))


def test_a_row_that_forgets_its_bounds_is_seen() -> None:
    """The planted bug: without `documents` a conversation sees the one before, and drafts run into the next."""
    head, embedding, ids, taps, documents, answer = packed()
    right, wrong = (list(unroll(head, embedding, ids, taps, 2, given)) for given in (documents, None))
    assert torch.allclose(right[0][:, :7], wrong[0][:, :7]) and not torch.allclose(right[0][:, 7:], wrong[0][:, 7:])
    everything = torch.ones_like(answer)
    assert loss_mask(everything, 0).sum() == 19 and loss_mask(everything, 0, documents).sum() == 15
