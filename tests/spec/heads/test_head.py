"""The head's forward against a dense restatement of (F0)..(F8), for every switch of the normal form."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from aerie.engine.attention.inputs import AttentionInputs
from aerie.spec.heads.head import Head
from tests.spec import models
from tests.spec.oracle import DenseHead

PAGE = 4


def pass_inputs(count: int, prefix: int, words: Tensor | None = None) -> AttentionInputs:
    """One row on pages 1, 2, ..: slot of position p is PAGE + p."""
    pages = -(-(prefix + count) // PAGE)
    return AttentionInputs(
        qo_indptr=torch.tensor([0, count], dtype=torch.int32),
        kv_indptr=torch.tensor([0, pages], dtype=torch.int32),
        kv_indices=torch.arange(1, pages + 1, dtype=torch.int32),
        last_page_len=torch.tensor([prefix + count - (pages - 1) * PAGE], dtype=torch.int32),
        prefix_lens=torch.tensor([prefix]),
        words=words,
        page_size=PAGE,
    )


def run_pairs(head: Head, tokens: Tensor, taps: Tensor, start: int = 0) -> Tensor:
    positions = torch.arange(start, start + len(tokens))
    planned = head.attention.plan(pass_inputs(len(tokens), start))
    return head.forward(tokens, head.fuse(taps), head.rotations(positions), positions + PAGE, planned)


def assert_close(got: Tensor, expected: Tensor) -> None:
    """To 1e-5 of the largest value: fp32 sums of values that large differ by as much with their order."""
    assert got.shape == expected.shape
    assert float((got - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm_before_residual": {"config": {"norm_before_residual": True}},
    "norm_output": {"config": {"eagle_config": {"norm_output": True}}},
    "fc_norm": {"extra": {f"fc_norm.{i}.weight": (models.HIDDEN,) for i in range(3)}},
    "aux_norm": {"extra": {f"aux_norm_{n}.weight": (models.HIDDEN,) for n in ("low", "mid", "high")}},
    "input_norm": {"extra": {"input_norm.weight": (3 * models.HIDDEN,)}},
    "two layers": {"layers": 2},
    "rope base": {"config": {"rope_theta": 300.0}},
    "biases": {
        "extra": {
            f"layers.0.self_attn.{n}_proj.bias": (models.HIDDEN if n in "qo" else models.HIDDEN // 2,) for n in "qkvo"
        }
        | {"fc.bias": (models.HIDDEN,)}
    },
    "qk norms": {"extra": {f"layers.0.self_attn.{n}_norm.weight": (models.HEAD_DIM,) for n in "qk"}},
}


def make_pair(name: str, folder: Path, target: Path) -> tuple[Head, DenseHead]:
    from tests.spec.checkpoints.test_loader import Lent, load

    variant = VARIANTS[name]
    layers = variant.get("layers", 1)
    tensors = models.head_tensors(layers=layers, extra=variant.get("extra"))
    head = load(models.write(folder, models.head_config(layers=layers, **variant.get("config", {})), tensors), target)
    for index, part in enumerate(("low", "mid", "high")):
        if f"aux_norm_{part}.weight" in tensors:
            tensors[f"fc_norm.{index}.weight"] = tensors.pop(f"aux_norm_{part}.weight")
    dense = DenseHead(
        tensors,
        Lent(target).embeddings,
        layers=layers,
        theta=head.config.rope.theta,
        pre_norm=head.config.pre_norm,
        norm_before_residual=name == "norm_before_residual",
        norm_output=name == "norm_output",
    )
    return head, dense


@pytest.mark.parametrize("name", VARIANTS)
@torch.inference_mode()
def test_pairs_and_recurrent_levels_equal_the_restatement(name: str, tmp_path: Path, target_folder: Path) -> None:
    head, dense = make_pair(name, tmp_path, target_folder)
    torch.manual_seed(2)
    count, levels = 7, 3
    tokens = torch.randint(models.VOCABULARY, (count + levels,))
    taps = torch.randn(count, 3 * models.HIDDEN)
    output = torch.cat([run_pairs(head, tokens[:4], taps[:4]), run_pairs(head, tokens[4:count], taps[4:], start=4)])
    mask = torch.ones(count, count, dtype=torch.bool).tril()
    expected = dense.forward(tokens[:count], dense.fuse(taps), torch.arange(count), mask)
    assert_close(output, expected)
    assert_close(head.read(output).logits, dense.logits(expected))

    hidden, last = dense.fuse(taps), expected
    for level in range(count, count + levels):
        fed = head.read(output[-1:]).feedback
        planned = head.attention.plan(pass_inputs(1, level))
        position = torch.tensor([level])
        output = head.forward(tokens[level : level + 1], fed, head.rotations(position), position + PAGE, planned)
        hidden = torch.cat([hidden, dense.feedback(last[-1:])])
        mask = torch.ones(level + 1, level + 1, dtype=torch.bool).tril()
        last = dense.forward(tokens[: level + 1], hidden, torch.arange(level + 1), mask)
        assert_close(output, last[-1:])


@torch.inference_mode()
def test_siblings_do_not_see_each_other(tmp_path: Path, target_folder: Path) -> None:
    head, dense = make_pair("plain", tmp_path, target_folder)
    torch.manual_seed(3)
    tokens, taps = torch.tensor([4, 9, 1]), torch.randn(3, 3 * models.HIDDEN)
    seed = run_pairs(head, tokens, taps)[-1:]
    children = torch.tensor([11, 23])
    planned = head.attention.plan(pass_inputs(2, 3, torch.tensor([1, 2])))
    both = head.forward(
        children, seed.expand(2, -1), head.rotations(torch.tensor([3, 3])), torch.tensor([7, 8]), planned
    )
    for index, child in enumerate(children.tolist()):
        hidden = torch.cat([dense.fuse(taps), seed])
        mask = torch.ones(4, 4, dtype=torch.bool).tril()
        alone = dense.forward(torch.tensor([*tokens.tolist(), child]), hidden, torch.arange(4), mask)[-1]
        assert_close(both[index], alone)


def test_power_wrong_order_of_the_concatenation_is_seen(tmp_path: Path, target_folder: Path) -> None:
    head, dense = make_pair("plain", tmp_path, target_folder)
    for name in ("q", "k", "v"):
        weight = dense.tensors[f"layers.0.self_attn.{name}_proj.weight"]
        dense.tensors[f"layers.0.self_attn.{name}_proj.weight"] = weight.roll(models.HIDDEN, 1)
    tokens, taps = torch.tensor([1, 2]), torch.randn(2, 3 * models.HIDDEN)
    mask = torch.ones(2, 2, dtype=torch.bool).tril()
    wrong = dense.forward(tokens, dense.fuse(taps), torch.arange(2), mask)
    assert not torch.allclose(run_pairs(head, tokens, taps), wrong, atol=1e-3)
