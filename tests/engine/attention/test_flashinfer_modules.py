"""Which compiled module a device gets, and what is said where there is none."""

import logging
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from aerie.contracts.errors import ConfigError
from aerie.engine.attention import flashinfer_modules, flashinfer_prebuild, make_attention
from aerie.engine.attention.flashinfer_modules import load_module, prebuilt_path, served_by
from aerie.engine.attention.flashinfer_variant import module_name
from aerie.engine.attention.inputs import AttentionShape
from tests.engine.fake_gpu import FakeAttention

SHAPE = AttentionShape(32, 8, 128, 16, torch.bfloat16, torch.device("cuda"))


@pytest.mark.parametrize(
    ("capability", "architectures"),
    [
        ((7, 5), ["75", "74", "73", "72", "71", "70"]),
        ((8, 0), ["80"]),
        ((8, 6), ["86", "85", "84", "83", "82", "81", "80"]),
        ((9, 0), ["90a"]),
        ((10, 0), ["100a"]),
        ((12, 0), ["120a"]),
    ],
)
def test_a_device_runs_code_of_its_own_and_of_older_minors(
    capability: tuple[int, int], architectures: list[str]
) -> None:
    assert served_by(capability) == architectures


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A Hopper with FlashInfer 0.6.18 installed, no modules and no compiler; what is loaded is listed."""
    loaded: list[str] = []
    flashinfer, ffi = ModuleType("flashinfer"), ModuleType("tvm_ffi")
    flashinfer.__version__ = "0.6.18"  # type: ignore[attr-defined]
    ffi.load_module = loaded.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer)
    monkeypatch.setitem(sys.modules, "tvm_ffi", ffi)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(flashinfer_modules, "compiler", lambda: None)
    monkeypatch.setenv("AERIE_KERNELS", str(tmp_path))
    return loaded


def test_a_prebuilt_module_is_found(device: list[str]) -> None:
    path = prebuilt_path("0.6.18", "90a", module_name(torch.bfloat16, 128))
    path.parent.mkdir(parents=True)
    path.touch()
    load_module(SHAPE)
    assert device == [str(path)]


@pytest.mark.parametrize(("version", "architecture"), [("0.7.2", "90a"), ("0.6.18", "80")])
def test_a_module_of_another_release_or_architecture_is_not(device: list[str], version: str, architecture: str) -> None:
    path = prebuilt_path(version, architecture, module_name(torch.bfloat16, 128))
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(ConfigError, match=r"no prebuilt attention module .* sm_90a .* make kernels ARCHS=90a"):
        load_module(SHAPE)
    assert not device


def test_a_module_that_does_not_fit_says_so(device: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def unfit(_: str) -> None:
        raise RuntimeError("libcudart.so.13: cannot open shared object file\nand more")

    monkeypatch.setattr(sys.modules["tvm_ffi"], "load_module", unfit)
    path = prebuilt_path("0.6.18", "90a", module_name(torch.bfloat16, 128))
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(
        ConfigError, match=r"cannot be loaded \(libcudart.so.13: cannot open .* file\); .*attention=triton"
    ):
        load_module(SHAPE)


def test_a_package_that_cannot_be_imported_says_so(device: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tvm_ffi", None)
    with pytest.raises(ConfigError, match=r"cannot be imported: .*tvm_ffi.*engine\.attention=triton"):
        load_module(SHAPE)


def test_a_module_in_a_later_folder_is_found(
    device: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIE_KERNELS", str(tmp_path / "shipped"))
    shipped = prebuilt_path("0.6.18", "90a", module_name(torch.bfloat16, 128))
    monkeypatch.setenv("AERIE_KERNELS", os.pathsep.join([str(tmp_path / "own"), str(tmp_path / "shipped")]))
    shipped.parent.mkdir(parents=True)
    shipped.touch()
    load_module(SHAPE)
    assert device == [str(shipped)]
    assert prebuilt_path("0.6.18", "90a", "new").is_relative_to(tmp_path / "own"), "new ones go to the first"


def test_a_compiler_that_fails_is_named(device: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def build_and_load(self) -> None:
            raise RuntimeError("Ninja build failed\nwith a long output")

    generator = ModuleType("flashinfer.jit.attention")
    generator.gen_customize_batch_prefill_module = lambda *_: Broken()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer.jit", ModuleType("flashinfer.jit"))
    monkeypatch.setitem(sys.modules, "flashinfer.jit.attention", generator)
    monkeypatch.setattr(flashinfer_modules, "compiler", lambda: tmp_path / "nvcc")
    with pytest.raises(ConfigError, match=r"cannot compile .*nvcc: Ninja build failed; .*engine\.attention=triton$"):
        load_module(SHAPE)


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both packages are installed; Triton's backend is a stand-in."""
    backend = ModuleType("aerie.engine.attention.triton")
    backend.TritonAttention = FakeAttention  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aerie.engine.attention.triton", backend)
    monkeypatch.setattr("aerie.engine.attention._installed", lambda name: name in ("flashinfer", "triton"))
    flashinfer_modules._say.cache_clear()


def test_auto_takes_triton_where_flashinfer_has_no_module(
    device: list[str], triton: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        made = [make_attention("auto", SHAPE) for _ in range(2)]
    assert all(isinstance(one, FakeAttention) for one in made)
    [line] = caplog.messages
    assert line.startswith("engine.attention=auto takes Triton in place of FlashInfer: no prebuilt attention module")
    assert "make kernels ARCHS=90a" in line
    with pytest.raises(ConfigError, match="no prebuilt attention module"):
        make_attention("flashinfer", SHAPE)


def test_auto_without_triton_says_what_flashinfer_lacks(
    device: list[str], triton: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerie.engine.attention._installed", lambda name: name == "flashinfer")
    with pytest.raises(ConfigError, match="no prebuilt attention module"):
        make_attention("auto", SHAPE)


def test_a_package_that_breaks_on_its_import_says_so(
    device: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flashinfer.py").write_text("raise AssertionError('Torch not compiled with CUDA enabled')\n")
    monkeypatch.delitem(sys.modules, "flashinfer")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"cannot be imported: Torch not compiled with CUDA enabled; .*=triton"):
        load_module(SHAPE)


def test_names_tell_modules_apart() -> None:
    names = {module_name(dtype, size) for dtype in (torch.bfloat16, torch.float16) for size in (64, 128)}
    assert len(names) == 4


@pytest.fixture
def nvcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A compiler that lists two architectures."""
    path = tmp_path / "nvcc"
    path.write_text("#!/bin/sh\necho sm_80\necho sm_90\n", encoding="ascii")
    path.chmod(0o755)
    monkeypatch.setattr(flashinfer_prebuild, "compiler", lambda: path)
    return path


def test_unknown_architectures_are_refused_with_the_known_ones(nvcc: Path) -> None:
    with pytest.raises(ConfigError, match=r"ARCHS has 70; .* knows 80 90 90a"):
        flashinfer_prebuild.main(["70", "80"], ["bf16"], [128])


def test_unknown_dtypes_and_sizes_are_refused(nvcc: Path) -> None:
    with pytest.raises(ConfigError, match=r"DTYPES are of bf16 f16 and HEAD_DIMS of 64 128 256"):
        flashinfer_prebuild.main(["80"], ["fp32"], [128])


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_prebuild, "compiler", lambda: None)
    with pytest.raises(ConfigError, match="no CUDA compiler: install one, or name its folder in CUDA_HOME"):
        flashinfer_prebuild.main(["90a"], ["bf16"], [128])
