"""Pickled weights become safetensors with the same names and values; a file without weights is refused unopened."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from scripts.convert_pickle import main


def convert(folder: Path, out: Path) -> int:
    return main([str(folder), str(out)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a head as SafeAILab publishes it, with a tensor under two names."""
    (tmp_path / "config.json").write_text('{"hidden_size": 4}', encoding="utf-8")
    shared = torch.arange(8.0).reshape(2, 4)
    tensors = {"fc.weight": shared, "copy": shared, "turned": shared.T, "d2t": torch.tensor([3, 5])}
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    return tmp_path


def test_names_values_and_neighbors_are_kept(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(folder, tmp_path / "out") == 0
    assert "4 tensors" in capsys.readouterr().out
    found = load_file(tmp_path / "out/model.safetensors")
    assert torch.equal(found["copy"], torch.arange(8.0).reshape(2, 4)) and torch.equal(
        found["fc.weight"], found["copy"]
    )
    assert torch.equal(found["turned"], found["copy"].T)
    assert found["d2t"].dtype == torch.int64 and found["d2t"].tolist() == [3, 5]
    assert json.loads((tmp_path / "out/config.json").read_text(encoding="utf-8")) == {"hidden_size": 4}
    assert convert(folder, tmp_path / "out") == 2, "what is there is not overwritten"


def test_shards_keep_an_index(folder: Path, tmp_path: Path) -> None:
    (folder / "pytorch_model.bin").unlink()
    for number in (1, 2):
        torch.save({f"layer.{number}": torch.ones(number)}, folder / f"pytorch_model-0000{number}-of-00002.bin")
    (folder / "pytorch_model.bin.index.json").write_text("{}", encoding="utf-8")
    assert convert(folder, tmp_path / "out") == 0
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text(encoding="utf-8"))
    assert index["weight_map"] == {f"layer.{n}": f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
    assert index["metadata"]["total_size"] == 12
    assert not (tmp_path / "out/pytorch_model.bin.index.json").exists()


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("boom",)


@pytest.mark.parametrize("fault", ["code", "garbage", "nothing"])
def test_what_is_no_weights_is_refused(
    folder: Path, tmp_path: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "pytorch_model.bin"
    if fault == "code":
        path.write_bytes(pickle.dumps(Bomb()))
    elif fault == "garbage":
        path.write_bytes(b"not a pickle at all")
    else:
        path.unlink()
    assert convert(folder, tmp_path / "out") == 2
    reported = capsys.readouterr()
    assert reported.err.startswith("convert_pickle: ") and "boom" not in reported.out
    assert not list((tmp_path / "out").glob("*.safetensors"))
