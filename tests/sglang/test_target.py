"""The contract with SGLang by mode: extend, decode and tree verify of its models give what separate prefills give, and
what Aerie's own decoder gives with the same weights.
"""

from pathlib import Path

import pytest
import torch

from aerie.contracts.errors import ConfigError
from tests.sglang.forked import run_forked
from tests.sglang.models import Rows, close, load
from tests.spec.models import write_target

TAPS = (2, 4, 5)
PROMPT = [3, 9, 14, 2, 33, 8, 5]
TREE = [11, 7, 21, 40, 13]
PARENTS = [0, 0, 0, 1, 2]
DEPTHS = [0, 1, 1, 2, 2]
WORDS = torch.tensor([0b1, 0b11, 0b101, 0b1011, 0b10101])
BRANCHES = {3: [11, 7, 40], 4: [11, 21, 13], 2: [11, 21], 0: [11]}
"""Node to the tokens on its path, the root first."""


def test_extend_decode_and_verify_equal_separate_prefills(tmp_path: Path) -> None:
    folder = write_target(tmp_path / "target")

    def body() -> None:
        target = load(folder, TAPS)
        rows = Rows(target)
        rows.run([0], [0], [PROMPT[:4]], wanted=torch.tensor([3]))
        chunk = rows.run([0], [4], [PROMPT[4:]], wanted=torch.tensor([2]))
        whole = rows.run([1], [0], [PROMPT], wanted=torch.tensor([6]))
        close(chunk.logits, whole.logits, 1e-5)
        assert chunk.taps is not None
        assert whole.taps is not None
        close(chunk.taps, whole.taps[4:], 1e-5)
        # Trees of two rows of unlike lengths, planned with spare pages, each node against a prefill of its path.
        tree = Rows(target, spare=20).run([0, 1], [7, 6], [TREE, TREE], depths=[DEPTHS] * 2, words=WORDS.repeat(2))
        for node, path in BRANCHES.items():
            for row, prefix in enumerate((PROMPT, PROMPT[:6])):
                tokens = prefix + path
                alone = rows.run([2], [0], [tokens], wanted=torch.tensor([len(tokens) - 1]))
                close(tree.logits[row * 5 + node], alone.logits[0], 1e-5)
                assert tree.taps is not None
                assert alone.taps is not None
                close(tree.taps[row * 5 + node], alone.taps[-1], 1e-5)
        # One token of each of two rows.
        step = Rows(target, spare=9).run([1, 0], [6, 7], [[4], [6]])
        for row, tokens in enumerate(([*PROMPT[:6], 4], [*PROMPT, 6])):
            alone = rows.run([2], [0], [tokens], wanted=torch.tensor([len(tokens) - 1]))
            close(step.logits[row], alone.logits[0], 1e-5)

    run_forked(body)


def test_a_chain_is_verified_causally(tmp_path: Path) -> None:
    """Also without taps, as plain rows beside drafting ones are."""
    folder = write_target(tmp_path / "target")

    def body() -> None:
        rows = Rows(load(folder))
        rows.run([0], [0], [PROMPT], wanted=torch.tensor([6]))
        chain = rows.run([0], [7], [[1, 2, 3]])
        assert chain.taps is None
        whole = rows.run([1], [0], [[*PROMPT, 1, 2, 3]])
        close(chain.logits, whole.logits[7:], 1e-5)

    run_forked(body)


def test_several_rows_extend_at_once_and_any_of_their_tokens_may_be_wanted(tmp_path: Path) -> None:
    folder = write_target(tmp_path / "target")

    def body() -> None:
        rows = Rows(load(folder, TAPS))
        both = rows.run([0, 1], [0, 0], [PROMPT, PROMPT[:3]], wanted=torch.tensor([6, 9]))
        one = rows.run([2], [0], [PROMPT], wanted=torch.tensor([2, 6]))
        close(both.logits[0], one.logits[1], 1e-5)
        close(both.logits[1], one.logits[0], 1e-5)
        assert both.taps is not None
        assert both.taps.shape == (10, 3 * 32)

    run_forked(body)


@pytest.mark.parametrize(
    ("argument", "says"),
    [("page_size", "sglang.arguments.page_size is given"), ("no_such_thing", "does not know.*no_such_thing")],
)
def test_further_arguments_are_passed_on_or_named(argument: str, says: str, tmp_path: Path) -> None:
    folder = write_target(tmp_path / "target")

    def body() -> None:
        assert load(folder, sglang={"arguments": {"random_seed": 7}}).config.layers == 8
        with pytest.raises(ConfigError, match=says):
            load(folder, sglang={"arguments": {argument: 1}})

    run_forked(body)
