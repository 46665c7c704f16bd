"""A head of random weights: it loads as the other does, and its matrices are others of the same spread."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.probe.random_head import random_head
from tests.probe.conftest import make_lane


def test_a_random_head_has_the_sizes_of_the_other(config: Config, tmp_path: Path) -> None:
    assert config.spec.head is not None
    random_head(Path(config.spec.head), tmp_path)
    [before], [after] = (list(folder.glob("*.safetensors")) for folder in (Path(config.spec.head), tmp_path))
    old, new = load_file(before), load_file(after)
    assert old.keys() == new.keys()
    for name, tensor in old.items():
        assert new[name].shape == tensor.shape and new[name].dtype == tensor.dtype
        random = tensor.is_floating_point() and tensor.dim() > 1
        assert torch.equal(new[name], tensor) != random
        assert not random or 0.8 < float(new[name].float().std() / tensor.float().std()) < 1.25
    lane = make_lane(config.model_copy(update={"spec": config.spec.model_copy(update={"head": str(tmp_path)})}))
    assert lane.capacity.drafts
    lane.close()


def test_a_folder_without_weights_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="safetensors"):
        random_head(tmp_path, tmp_path)
