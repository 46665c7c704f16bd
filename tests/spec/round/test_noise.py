"""Where the kernel that chooses makes its noise itself, a round makes noise for the head's ids alone: the same text."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from aerie.contracts.config import parse_config
from aerie.contracts.sampling import SamplingParams
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.sampling.choose import choose
from aerie.engine.sampling.noise import gumbel
from aerie.spec.build import build_worker
from tests.engine.rounds import Rounds
from tests.spec.test_worker import SHAPES


def own_noise(*given: Any, noise: Tensor | None = None, **others: Any) -> Tensor:
    assert noise is None, "this kernel does not read it"
    return choose(*given, **others)


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_noise_of_the_head_s_ids_alone_changes_no_token(target_folder: Path, head_folder: Path, shape: str) -> None:
    wide: list[int] = []

    def counting(keys: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        wide.append(tokens.numel())
        return gumbel(keys, positions, tokens)

    own = SHAPES[shape]
    config = parse_config(
        {
            "model": {"path": str(target_folder), "dtype": "float32"},
            "engine": {"kv_tokens": 2048, "kernels": "torch"},
            "scheduler": {"max_running": 2},
            "spec": {"head": str(head_folder), **own},
        }
    )

    def text(kernels: Kernels) -> list[int]:
        rounds = Rounds(build_worker(config, kernels))
        row = rounds.add(0, [1, 2, 3, 4, 5], SamplingParams(temperature=0.9, seed=4, max_tokens=16), drafting=True)
        rounds.finish([row], **own)
        return row.out

    expected = text(REFERENCES)
    assert text(Kernels("triton", {choose: own_noise, gumbel: counting})) == expected
    assert set(wide) == {32}, "the head drafts half of the vocabulary of 64"
