"""A target on the docstrings, killed and resumed, ends in the same bytes; what it recites is counted."""

import json
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from aerie.train.__main__ import app
from aerie.train.demo.config import DocstringTarget
from aerie.train.demo.corpus.conversations import Renderer
from aerie.train.demo.corpus.docstrings import Entry
from aerie.train.demo.corpus.pretrain import pretrain
from aerie.train.demo.corpus.questions import TAUGHT
from aerie.train.demo.corpus.recite import answer, recite
from aerie.train.optimization import checkpoint


class _Killed(Exception):
    pass


def test_a_resumed_target_is_the_undisturbed_one(
    recital: DocstringTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretrain(recital, tmp_path / "calm", seed=0)
    whole = checkpoint.save

    def save(*args: object) -> None:
        whole(*args)  # type: ignore[arg-type]
        raise _Killed

    with monkeypatch.context() as patch, pytest.raises(_Killed):
        patch.setattr(checkpoint, "save", save)
        pretrain(recital, tmp_path / "killed", seed=0)
    pretrain(recital, tmp_path / "killed", seed=0)
    for name in ("model.safetensors", "tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "calm" / name).read_bytes()


def test_answers_are_reproducible(
    llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, entries: list[Entry]
) -> None:
    questions = [(entry, TAUGHT[0]) for entry in entries[:6]]
    first, again = (answer(llama, tokenizer, questions, temperature=1.0, seed=5) for _ in range(2))
    assert first == again


def test_batched_answers_equal_answers_one_by_one(
    llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, entries: list[Entry]
) -> None:
    """Greedy, so padding on the left must change nothing; compared up to the shorter limit."""
    questions = [(entry, phrasing) for entry, phrasing in zip(entries[:4], TAUGHT, strict=False)]
    together = answer(llama, tokenizer, questions, temperature=0.0, seed=0)
    for question, sample in zip(questions, together, strict=True):
        alone = answer(llama, tokenizer, [question], temperature=0.0, seed=0)[0].ids
        assert sample.ids[: len(alone)] == alone
        prompt = Renderer(tokenizer).prompt(question[1].format(name=question[0].name, kind=question[0].kind))
        assert sample.ids[: len(prompt)] == prompt


def test_a_recital_reports_shares(corpus: Path, target: Path) -> None:
    figures = recite(corpus, target, entries=4, seed=0)
    assert figures["taught"]["asked"] == figures["held_out"]["asked"] == 4
    assert all(0 <= figures[kind][share] <= 1 for kind in figures for share in ("first_line", "whole"))


def test_the_command_judges_a_target_by_its_recipe(recital: DocstringTarget, target: Path, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    data = {"work": str(tmp_path / "work"), "prompts": {"drawn": 1}, "vocabulary": {"size": 9}}
    path.write_text(json.dumps(data | {"pretrain": recital.model_dump()}))
    done = CliRunner().invoke(app, ["judge", str(path), "--target", str(target), "--count", "2"])
    assert done.exit_code == 0 and json.loads(done.stdout)["taught"]["asked"] == 2
    early = CliRunner().invoke(app, ["judge", str(path)])
    assert early.exit_code == 2 and "aerie train target" in early.stderr
    missing = CliRunner().invoke(app, ["judge", str(tmp_path / "no.yaml")])
    assert missing.exit_code == 2 and "no.yaml" in missing.stderr


def test_unknown_keys_are_refused(recital: DocstringTarget) -> None:
    with pytest.raises(ValueError, match="stepz"):
        DocstringTarget.model_validate(recital.model_dump() | {"stepz": 3})
