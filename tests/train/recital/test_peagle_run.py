"""A whole P-EAGLE run on a tiny pair: it learns, is exported, served, accepted; killed, it ends in the same bytes."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from aerie.contracts.config import load_config, parse_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.sampling import SamplingParams
from aerie.spec.build import build_worker
from aerie.train.__main__ import app
from aerie.train.heads.export import export
from aerie.train.heads.peagle.export import load_parallel_head
from aerie.train.heads.vocabulary import DraftVocabulary
from aerie.train.optimization import checkpoint
from aerie.train.recital.answers import answer
from aerie.train.recital.config import TrainConfig
from aerie.train.recital.conversations import Sample
from aerie.train.recital.docstrings import Entry
from aerie.train.recital.peagle_config import ParallelRun, load_parallel
from aerie.train.recital.peagle_run import started_parallel, train_parallel
from aerie.train.recital.questions import TAUGHT
from aerie.train.recital.start import started_head, started_vocabulary
from tests.engine.rounds import Rounds


@pytest.fixture
def run(config: TrainConfig, tmp_path: Path) -> ParallelRun:
    pair = tmp_path / "pair.yaml"
    pair.write_text(json.dumps(config.model_dump(mode="json")))
    return ParallelRun(
        pair=str(pair),
        out=str(tmp_path / "peagle"),
        work=str(tmp_path / "peagle-work"),
        layers=2,
        intermediate_size=48,
        depth=4,
        rate=0.8,
        floor=0.2,
        elements=120,
        steps=4,
        tokens_per_batch=128,
        longest=96,
        matrix_rate=0.01,
        vector_rate=0.01,
        warmup=2,
        decay=0.3,
        clip=0.5,
        seed=0,
        threads=1,
        checkpoint_every=2,
    )


class _Killed(Exception):
    pass


def test_a_resumed_run_is_the_undisturbed_one_and_reads_back_equal(
    config: TrainConfig, run: ParallelRun, target: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config.model_copy(update={"head": config.head.model_copy(update={"answer_temperatures": ()})})
    monkeypatch.setattr("aerie.train.recital.measure._ASKED", 2)
    train_parallel(run, config)
    calm = (Path(run.out) / "model.safetensors").read_bytes()
    again = run.model_copy(update={"out": run.out + "-2", "work": run.work + "-2"})
    whole = checkpoint.save

    def save(*args: object) -> None:
        whole(*args)  # type: ignore[arg-type]
        raise _Killed

    with monkeypatch.context() as patch, pytest.raises(_Killed):
        patch.setattr(checkpoint, "save", save)
        train_parallel(again, config)
    train_parallel(again, config)
    assert (Path(again.out) / "model.safetensors").read_bytes() == calm
    tokenizer = PreTrainedTokenizerFast.from_pretrained(config.target.out)
    vocabulary = started_vocabulary(config.head, [], tokenizer)
    shape = started_parallel(run, config, vocabulary, tokenizer)[0].shape
    kept = load_file(Path(run.work) / "checkpoint/weights.safetensors")
    for name, weight in load_parallel_head(Path(run.out), shape).named_parameters():
        assert torch.equal(weight, kept[name].bfloat16().float()), name
    assert "conditional_accuracy:" in (Path(run.out) / "README.md").read_text()


def test_one_conversation_is_learned_served_and_accepted(
    config: TrainConfig,
    run: ParallelRun,
    target: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    entries: list[Entry],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Overfit -> export -> the real engine: at least 95 % of the depth is accepted."""
    (sample,) = answer(target, tokenizer, [(entries[0], TAUGHT[0])], temperature=0.0, seed=0)
    length = min(len(sample.ids), 32)
    sample = Sample(sample.ids[:length], sample.answer[:length])
    monkeypatch.setattr("aerie.train.recital.peagle_run.conversations", lambda *_: [sample])
    monkeypatch.setattr("aerie.train.recital.peagle_run.own_answers", lambda *_: [])
    monkeypatch.setattr("aerie.train.recital.peagle_run.measure", lambda *_: ("not here", ()))
    vocabulary = config.head.model_copy(update={"draft_vocabulary": 400})
    learned = run.model_copy(
        update={"steps": 80, "matrix_rate": 0.03, "checkpoint_every": 1000, "rate": 1.0, "floor": 1.0, "elements": 900}
    )
    train_parallel(learned, config.model_copy(update={"head": vocabulary}))
    worker = build_worker(
        parse_config(
            {
                "model": {"path": config.target.out, "dtype": "float32"},
                "engine": {"kv_tokens": 1024},
                "spec": {"head": run.out, "depth": 4, "topk": 1, "nodes": 5},
            }
        )
    )
    assert worker.capacity.report["head_kind"] == "peagle"
    prompt = sample.ids[: sample.answer.index(True)]
    rounds = Rounds(worker)
    row = rounds.add(0, prompt, SamplingParams(temperature=0.0, max_tokens=length - len(prompt)), drafting=True)
    rounds.finish([row], depth=4, topk=1, nodes=5)
    assert [*prompt, *row.out] == sample.ids
    full = np.array(row.accepted[1:-1])  # the last round ends with the row
    assert full.mean() >= 0.95 * 4, row.accepted


def test_another_draft_vocabulary_is_refused_on_resume(
    config: TrainConfig, run: ParallelRun, target: LlamaForCausalLM, tmp_path: Path
) -> None:
    (tmp_path / "peagle-work").mkdir()
    save_file({"draft_to_target": torch.arange(300)}, tmp_path / "peagle-work/vocabulary.safetensors")
    with pytest.raises(ValueError, match="another draft vocabulary"):
        train_parallel(run, config)


def test_a_head_of_another_target_or_draft_vocabulary_is_no_start(
    config: TrainConfig,
    run: ParallelRun,
    target: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    entries: list[Entry],
    tmp_path: Path,
) -> None:
    vocabulary = started_vocabulary(config.head, entries, tokenizer)
    head, _ = started_head(config.head, Path(config.target.out), vocabulary)
    export(head, vocabulary, Path(config.target.out), tmp_path / "head", trained_on="nothing", measured="not")
    going_on = run.model_copy(update={"start_from": str(tmp_path / "head")})
    begun, _ = started_parallel(going_on, config, vocabulary, tokenizer)
    assert torch.equal(begun.fc.weight, head.fc.weight.bfloat16().float())
    other = DraftVocabulary(torch.arange(100, 400), vocabulary.size, 1.0)
    with pytest.raises(ConfigError, match=r"another draft vocabulary than the pair's \(300 ids, here 300\)"):
        started_parallel(going_on, config, other, tokenizer)
    card = tmp_path / "head/README.md"
    card.write_text(re.sub(r"target_weights: [0-9a-f]{64}", f"target_weights: {'f' * 64}", card.read_text()))
    with pytest.raises(ConfigError, match=r"names the target f{64}; this one is"):
        started_parallel(going_on, config, vocabulary, tokenizer)


def test_the_shipped_config_is_that_of_the_demo_target() -> None:
    run, pair = load_parallel(Path("configs/train/demo-peagle.yaml"))
    assert pair.target.out == "models/demo/target"
    served = load_config(Path("configs/serve/demo-peagle.yaml"))
    assert served.spec.head == run.out and served.model.path == pair.target.out
    assert served.spec.depth <= run.depth


def test_the_command_refuses_what_is_missing_or_finished(
    config: TrainConfig, run: ParallelRun, target: LlamaForCausalLM, tmp_path: Path
) -> None:
    path = tmp_path / "peagle.yaml"
    path.write_text(yaml.safe_dump(run.model_dump()))
    assert load_parallel(path) == (run, config)
    (tmp_path / "peagle").mkdir()
    (tmp_path / "peagle/model.safetensors").write_bytes(b"")
    refused = CliRunner().invoke(app, ["peagle", str(path)])
    assert refused.exit_code == 2 and "--again" in refused.stderr
    missing = CliRunner().invoke(app, ["peagle", str(tmp_path / "no.yaml")])
    assert missing.exit_code == 2 and "no.yaml" in missing.stderr
    path.write_text(yaml.safe_dump(run.model_dump() | {"stepz": 1}))
    wrong = CliRunner().invoke(app, ["peagle", str(path)])
    assert wrong.exit_code == 2 and "stepz" in wrong.stderr
