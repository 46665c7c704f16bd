"""Features are the serving engine's, on every kind of storage, in the same bytes after a kill, and never half there."""

import errno
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import LlamaForCausalLM

from aerie.contracts.errors import AerieError, ConfigError
from aerie.train.pipeline import features as module
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.served import OutputEnd, ServedTarget
from aerie.train.pipeline.data.shards import ABOUT, Shards, read_index
from aerie.train.pipeline.data.storage import Storage
from aerie.train.pipeline.features import make_features
from tests.train.pipeline.tiny import changed, run_to, tree_bytes


def test_states_are_the_target_s_residuals_and_logits(shared: PipelineConfig) -> None:
    folder = run_to(shared, "features")
    shards, end = Shards(folder), OutputEnd(Path(shared.target))
    stored = shards.document(0, 1)
    assert stored.states is not None and shards.index.boundaries == (2, 4, 5) and shards.index.final_is_prenorm
    model = LlamaForCausalLM.from_pretrained(shared.target, dtype=torch.float32).eval()
    with torch.no_grad():
        output = model(stored.ids[None], output_hidden_states=True)
    taps = torch.cat([output.hidden_states[b][0] for b in (2, 4, 5)], -1)
    assert torch.allclose(stored.states.taps.float(), taps, rtol=1 / 128, atol=1e-2)
    logits = end.logits(stored.states.final)
    assert (
        torch.allclose(logits, output.logits[0], atol=0.05) and (logits.argmax(-1) == output.logits[0].argmax(-1)).all()
    )


def test_shards_say_what_they_were_made_from(shared: PipelineConfig) -> None:
    folder = run_to(shared, "features")
    index = read_index(folder)
    assert len(index.shards) > 1 and index.storage is None
    with safe_open(folder / index.shards[0].name, framework="pt") as shard:
        about = json.loads(shard.metadata()[ABOUT])
    assert about["boundaries"] == "2 4 5" and about["final"] == "before the norm"
    assert about["target"] == index.target and about["template"] == index.template and len(index.template) == 64


def test_a_killed_start_keeps_whole_shards_and_ends_in_the_same_bytes(
    shared: PipelineConfig, answered: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = run_to(shared, "features")
    written: list[str] = []

    class Dying(Storage):
        def write(self, name: str, data: bytes) -> None:
            if written:
                raise KeyboardInterrupt
            written.append(name)
            super().write(name, data)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "Storage", Dying)
        make_features(answered)
    partial = Path(answered.work) / "features.partial"
    assert [path.name for path in partial.glob("shard-*")] == written == ["shard-00000.safetensors"]
    stamp = (partial / written[0]).stat().st_mtime_ns
    folder = make_features(answered)
    assert (folder / written[0]).stat().st_mtime_ns == stamp
    assert tree_bytes(folder) == tree_bytes(calm)


def test_a_disk_that_is_too_small_is_known_before_the_work(
    answered: PipelineConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Storage, "free_bytes", lambda self: 1000)
    with pytest.raises(AerieError, match=r"would take .* has 1000 free"):
        make_features(answered)
    reported = capsys.readouterr().err
    assert "tokens: about" in reported and "hours" in reported


@pytest.mark.parametrize("url", ["memory://heads/{name}", "file://{folder}/far"])
def test_shards_may_lie_elsewhere(
    shared: PipelineConfig, answered: PipelineConfig, tmp_path: Path, url: str, request: pytest.FixtureRequest
) -> None:
    calm = Shards(run_to(shared, "features"))
    place = url.format(folder=tmp_path, name=request.node.name)
    folder = make_features(changed(answered, features={"storage": place}))
    assert not list(folder.glob("shard-*"))
    far = Shards(folder)
    assert far.index.storage is not None and far.index.storage.startswith(place)
    assert [entry.sha256 for entry in far.index.shards] == [entry.sha256 for entry in calm.index.shards]
    for number, lengths in enumerate(far.lengths):
        for place_ in range(len(lengths)):
            ours, theirs = far.document(number, place_), calm.document(number, place_)
            assert ours.states is not None and theirs.states is not None
            assert torch.equal(ours.states.taps, theirs.states.taps) and torch.equal(ours.ids, theirs.ids)


def test_a_lost_or_torn_shard_is_named(ready: PipelineConfig) -> None:
    folder = Path(ready.work) / "features"
    name = read_index(folder).shards[0].name
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    with pytest.raises(AerieError, match=f"{name} in .* has"):
        Shards(folder)
    (folder / name).unlink()
    with pytest.raises(AerieError, match=f"{name} in .* is missing"):
        Shards(folder)


def test_online_states_equal_stored_ones(shared: PipelineConfig) -> None:
    shards = Shards(run_to(shared, "features"))
    target = ServedTarget(Path(shared.target), (2, 4, 5), longest=96, dtype="auto", threads=1)
    for place in (1, 0, 1):  # whatever was computed before
        stored = shards.document(0, place)
        computed = target.states(stored.ids.tolist())
        assert stored.states is not None
        assert torch.equal(computed.taps, stored.states.taps) and torch.equal(computed.final, stored.states.final)


def test_taps_that_the_target_has_not_are_refused(answered: PipelineConfig) -> None:
    for taps in ([2, 4, 8], [4, 2, 5], [2, 2, 5]):
        with pytest.raises(ConfigError, match=r"features.taps .* 0 .. 7"):
            make_features(changed(answered, features={"taps": taps}))


def test_another_config_does_not_go_on_with_what_was_begun(
    answered: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Storage, name: str, data: bytes) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="broken"):
        patch.setattr(Storage, "write", full)
        make_features(answered)
    with pytest.raises(AerieError, match=r"made with another longest .* --again"):
        make_features(changed(answered, features={"longest": 64}))
    assert json.loads((Path(answered.work) / "features.partial/manifest.json").read_text())["config"]["longest"] == 96
