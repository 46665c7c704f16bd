"""The stage `gpu` as far as a machine without a driver can start it: its environment, its modules, no CUDA compiler."""

import logging
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from aerie.contracts.config import load_config
from aerie.engine.attention import flashinfer_modules, make_attention
from aerie.engine.attention.flashinfer_variant import DTYPES, module_name
from aerie.spec.build import build_worker
from tests.docker.conftest import DOCKER, HOME
from tests.engine.fake_gpu import FakeAttention, fake_gpu
from tests.engine.stand_in import StandInEvent

RELEASE = re.search(r"(?m)^flashinfer-python==(.+)$", (HOME / "constraints-gpu.txt").read_text(encoding="utf-8"))[1]  # type: ignore[index]
Start = Callable[[tuple[int, int]], str]


def stages() -> dict[str, str]:
    """The text of each stage by its name."""
    parts = re.split(r"(?m)^FROM ", (DOCKER / "Dockerfile").read_text(encoding="utf-8"))[1:]
    return {part.splitlines()[0].split()[-1]: part for part in parts}


def words(stage: str, instruction: str) -> dict[str, str]:
    """NAME=VALUE words of ENV or ARG lines."""
    lines = re.findall(rf"(?m)^{instruction} (.+)$", stages()[stage])
    return dict(word.split("=", 1) for line in lines for word in shlex.split(line) if "=" in word)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folders of the image lie; its environment names them there. No nvcc; both packages are installed."""
    folders = [f"{tmp_path}{folder}" for folder in words("gpu", "ENV")["AERIE_KERNELS"].split(":")]
    monkeypatch.setenv("AERIE_KERNELS", ":".join(folders))
    for name, content in (("flashinfer", {"__version__": RELEASE}), ("tvm_ffi", {"load_module": str})):
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(flashinfer_modules, "compiler", lambda: None)
    backend = ModuleType("aerie.engine.attention.triton")
    backend.TritonAttention = type("Triton", (FakeAttention,), {"name": "triton"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aerie.engine.attention.triton", backend)
    monkeypatch.setattr("aerie.engine.attention._installed", lambda _: True)
    flashinfer_modules._say.cache_clear()
    return tmp_path


@pytest.fixture
def start(root: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """The worker of the shape of the stage's own model, with the command's settings -> its attention backend."""
    [command] = re.findall(r"(?m)^CMD (\[.+\])$", stages()["gpu"])
    config, *settings = re.findall(r'"([^"]+)"', command)[1:]
    settings += ["engine.graphs=false", "model.dtype=bfloat16", "scheduler.max_running=2", "engine.kernels=torch"]
    processors = SimpleNamespace(multi_processor_count=108)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: processors)
    monkeypatch.setattr(torch.cuda, "Event", StandInEvent)

    def started(capability: tuple[int, int]) -> str:
        dummy = load_config(HOME / config.replace(".yaml", "-dummy.yaml"), settings)
        with fake_gpu(capability=capability, free=80 << 30), pytest.MonkeyPatch.context() as patch:
            for module in ("aerie.engine.build", "aerie.spec.drafters.head_drafter"):
                patch.setattr(f"{module}.make_attention", make_attention)
            return str(build_worker(dummy).capacity.report["attention"])

    return started


def ship(root: Path) -> None:
    """Files for what the stage `kernels` compiles, where the stage `gpu` copies them."""
    [target] = re.findall(r"(?m)^COPY --from=kernels /opt/kernels (\S+)$", stages()["gpu"])
    made = words("kernels", "ARG")
    dtypes = {name: dtype for dtype, name in DTYPES.items()}
    for architecture in made["KERNEL_ARCHS"].split():
        folder = Path(f"{root}{target}") / f"flashinfer-{RELEASE}" / f"sm_{architecture}"
        folder.mkdir(parents=True)
        for dtype in made["KERNEL_DTYPES"].split():
            for size in made["KERNEL_HEAD_DIMS"].split():
                (folder / f"{module_name(dtypes[dtype], int(size))}.so").touch()


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0)])
def test_it_starts_with_the_modules_that_it_ships(root: Path, start: Start, capability: tuple[int, int]) -> None:
    ship(root)
    assert start(capability) == "flashinfer"


def test_on_another_gpu_it_starts_with_triton_and_says_so_once(
    root: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    ship(root)
    with caplog.at_level(logging.WARNING):
        assert start((12, 0)) == "triton"
    [line] = [line for line in caplog.messages if "Triton" in line]
    assert "no prebuilt attention module" in line and "sm_120a" in line


def test_modules_of_the_image_and_those_made_later_lie_apart() -> None:
    """The volume would hide what an image has below it, and keep the modules of an older image."""
    first, *rest = words("gpu", "ENV")["AERIE_KERNELS"].split(":")
    assert first.startswith("/models/") and rest
    assert not any(folder.startswith("/models") for folder in rest)
