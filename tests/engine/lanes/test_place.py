"""Where steps run: a scheduler without a GPU to drive never loads PyTorch, and one that may have one asks it."""

import subprocess
import sys

import pytest
import torch

from aerie.contracts.config import Config, parse_config
from aerie.contracts.errors import ConfigError
from aerie.engine.lanes import place
from aerie.lane import make_lane
from tests.house import HOME

WITHOUT = """
import sys
import aerie.lane
from aerie.contracts.config import Config
from aerie.engine.lanes import cpu, place

place._DRIVER = "no-such-driver.so"
assert place.runs_on_cpu(Config()) and place.lane_threads(Config()) >= 1
sys.exit("torch" in sys.modules)
"""


def test_without_a_driver_nobody_loads_torch() -> None:
    assert subprocess.run([sys.executable, "-c", WITHOUT], cwd=HOME, check=False).returncode == 0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_where_a_driver_is_torch_decides(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(place, "_DRIVER", "libc.so.6")
    monkeypatch.setattr("aerie.engine.device.resolve_device", lambda config: torch.device(device))
    assert place.runs_on_cpu(Config()) == (device == "cpu")
    assert place.runs_on_cpu(parse_config({"engine": {"device": "cpu"}}))


def test_a_gpu_that_is_asked_for_and_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"engine\.device"):
        place.runs_on_cpu(parse_config({"engine": {"device": "cuda"}}))


def test_threads_leave_a_core_to_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, threads in ((1, 1), (2, 1), (8, 7)):
        monkeypatch.setattr(place, "usable_cores", lambda cores=cores: cores)
        assert place.lane_threads(Config()) == threads
    assert place.lane_threads(parse_config({"engine": {"threads": 3}})) == 3


def test_memory_that_runs_out_while_loading_says_what_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(_: Config) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nof nothing")

    monkeypatch.setattr("aerie.worker.build_launcher", build)
    monkeypatch.setattr("aerie.engine.lanes.place.runs_on_cpu", lambda _: False)
    with pytest.raises(
        ConfigError, match=r"while the model was loaded: CUDA out .* 2\.00 GiB\.; lower engine\.memory_share"
    ):
        make_lane(parse_config({"model": {"path": "any"}}))
