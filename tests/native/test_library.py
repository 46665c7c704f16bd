"""The library of C++ kernels: what it is compiled for, where it is kept, and what is said where it cannot be had."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from aerie.contracts.config import parse_config
from aerie.contracts.errors import ConfigError
from aerie.native import library as building
from aerie.native import march
from aerie.native.kernels.table import choose_cpp
from aerie.native.library import Unavailable
from aerie.native.march import LEVELS, lacking, march_of, runnable
from aerie.worker import choose_kernels

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is kept, and nothing was found out."""
    monkeypatch.delenv("AERIE_MARCH", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("AERIE_KERNELS", str(tmp_path))
    monkeypatch.setattr(building, "library", building.library.__wrapped__)
    monkeypatch.setattr(building, "missing", building.missing.__wrapped__)
    monkeypatch.setattr("aerie.native.kernels.table.missing", building.missing)


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Makes this machine an x86 of features."""

    def of(features: str) -> None:
        reported = tmp_path / "cpuinfo"
        reported.write_text(f"processor\t: 0\nflags\t\t: fpu {features}\n\nprocessor\t: 1\nflags\t\t: fpu {features}\n")
        monkeypatch.setattr(march, "_CPUINFO", reported)
        monkeypatch.setattr(march.platform, "machine", lambda: "x86_64")

    return of


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a compiler that writes empty files was asked for, and what was loaded."""
    done: list[str] = []

    def compile_nothing(
        command: list[str], sources: list[Path], library: Path, *, seconds: float, idle_seconds: float
    ) -> Path:
        done.append("compiled for " + " ".join(word for word in command if word.startswith("-m")))
        library.parent.mkdir(parents=True, exist_ok=True)
        library.write_text("")
        return library

    monkeypatch.setattr(building, "_version", lambda _: "1")
    monkeypatch.setattr(building, "_opened", lambda path: done.append(f"loaded {path.name.rpartition('-')[0][:-17]}"))
    monkeypatch.setattr(building.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(building, "compiled", compile_nothing)
    return done


def features_of(name: str) -> str:
    return " ".join(LEVELS[name].features)


def test_a_cpu_gets_the_best_level_that_it_has_whole(cpu: Callable[[str], None]) -> None:
    for name in ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"):
        cpu(features_of(name))
        assert runnable()[0].name == name
    cpu(features_of("x86-64-v4").replace("avx512vl", ""))
    assert [level.name for level in runnable()] == ["x86-64-v3", "x86-64-v2", "x86-64"]
    cpu(features_of("x86-64-v3").replace("fma", ""))
    assert runnable()[0].name == "x86-64-v2"


def test_levels_are_what_compilers_call_by_these_names() -> None:
    """Held to GCC, which knows them since its version 11."""

    def macros(*flags: str) -> set[str]:
        words = ["g++", "-dM", "-E", "-x", "c++", *flags, "/dev/null"]
        return set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines())

    if march.this_machine() != "x86_64" or building.shutil.which("g++") is None:
        pytest.skip("needs a GCC for x86-64")
    for name in ("x86-64-v2", "x86-64-v3", "x86-64-v4"):
        wanted = {line for line in macros(f"-march={name}") if "AVX" in line or "SSE" in line or "FMA" in line}
        assert wanted <= macros(*LEVELS[name].flags), name


def test_a_library_that_this_cpu_cannot_run_is_never_loaded(
    cpu: Callable[[str], None], compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIE_MARCH", "x86-64-v4")
    cpu(features_of("x86-64-v3"))
    building.make()  # for another machine
    assert len(compiled) == 1 and "-mavx512vl" in compiled[0]
    with pytest.raises(Unavailable, match="this CPU cannot run x86-64-v4: it lacks avx512bw avx512cd avx512dq avx512f"):
        building.library()
    assert len(compiled) == 1, "nothing was loaded"
    torch_s = choose_cpp("auto")
    assert torch_s.language is None and "cannot run x86-64-v4" in torch_s.report
    with pytest.raises(ConfigError, match=r"kernels is cpp, and this CPU cannot run x86-64-v4.*engine\.kernels=auto"):
        choose_cpp("cpp")
    monkeypatch.delenv("AERIE_MARCH")
    building.library()
    assert compiled[-1] == "loaded x86-64-v3"


def test_what_was_made_for_a_lesser_cpu_serves_where_there_is_no_compiler(
    cpu: Callable[[str], None],
    compiled: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cpu(features_of("x86-64-v4"))
    for name in ("x86-64-v2", "x86-64-v3"):
        monkeypatch.setenv("AERIE_MARCH", name)
        building.make()
    monkeypatch.delenv("AERIE_MARCH")
    monkeypatch.setattr(building.shutil, "which", lambda _: None)
    with caplog.at_level("WARNING", "aerie.kernels"):
        building.library()
    assert compiled[2:] == ["loaded x86-64-v3"]
    assert "no C++ compiler" in caplog.text and "x86-64-v3" in caplog.text
    monkeypatch.setattr(building, "_FLAGS", ("-O2",))  # as other sources would be
    with pytest.raises(Unavailable, match="there is no C"):
        building.library()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("x86-64-v9", "AERIE_MARCH is x86-64-v9; it can be x86-64, .*, armv8-a or native"),
        ("armv8-a", "armv8-a is for aarch64, and this machine is x86_64"),
    ],
)
def test_a_march_that_this_is_not_is_refused_by_name(
    cpu: Callable[[str], None], compiled: list[str], monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    cpu(features_of("x86-64-v3"))
    monkeypatch.setenv("AERIE_MARCH", name)
    with pytest.raises(Unavailable, match=why):
        building.library()
    assert compiled == []


def test_for_another_family_its_own_compiler_is_called(
    cpu: Callable[[str], None], compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu("")
    monkeypatch.setenv("AERIE_MARCH", "armv8-a")
    asked: list[str] = []
    monkeypatch.setattr(building.shutil, "which", asked.append)
    with pytest.raises(Unavailable, match=r"no C\+\+ compiler for aarch64 \(Debian: g\+\+-aarch64-linux-gnu\)"):
        building.make()
    assert asked == ["aarch64-linux-gnu-g++"] and compiled == []


def test_a_system_that_says_nothing_of_its_cpu_gets_native(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(march, "_CPUINFO", tmp_path / "none")
    assert [level.name for level in runnable()] == ["native"] and lacking(runnable()[0]) is None
    monkeypatch.setattr(march.platform, "machine", lambda: "x86_64")
    assert "is not known" in (lacking(march_of("x86-64-v3")) or "")


def test_without_a_compiler_torch_serves_and_asking_for_them_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(building.shutil, "which", lambda _: None)
    torch_s = choose_cpp("auto")
    assert torch_s.language is None
    assert torch_s.report == "none: there is no C++ compiler (Debian: g++)"
    with pytest.raises(ConfigError, match=r"kernels is cpp, and there is no C\+\+ compiler.*engine\.kernels=auto"):
        choose_cpp("cpp")


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\n[ $1 = --version ] && exit 0\necho 'no such standard' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(Unavailable, match="failed: no such standard"):
        building._compiled(str(broken), tmp_path / "kept", march.native())
    assert not list((tmp_path / "kept").iterdir()), "nothing half-made may be left"


def test_cxx_names_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building.shutil, "which", lambda name: None if name == "none" else name)
    monkeypatch.setattr(building, "_compiled", lambda compiler, *_: Path(compiler))
    for named, compiler in (("clang++-14", "clang++-14"), ("none", "c++"), ("", "c++")):
        monkeypatch.setenv("CXX", named)
        assert building.make() == Path(compiler)


def test_a_compiler_that_hangs_in_the_middle_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = tmp_path / "c++"
    hanging.write_text("#!/bin/sh\n[ $1 = --version ] && exit 0\nexec tail -f /dev/null\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(building, "_IDLE_SECONDS", 0.1)
    with pytest.raises(Unavailable, match="hangs or takes more than 300 seconds, and is stopped"):
        building._compiled(str(hanging), tmp_path / "kept", march.native())
    assert not list((tmp_path / "kept").iterdir())


def test_a_compiler_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = tmp_path / "c++"
    hanging.write_text("#!/bin/sh\nexec tail -f /dev/null\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(building, "_VERSION_SECONDS", 0.1)
    monkeypatch.setattr(building.shutil, "which", lambda _: str(hanging))
    with pytest.raises(Unavailable, match=r"c\+\+ --version took more than 0.1 seconds"):
        building.library()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match=r"cannot be kept in .*file.cpp.*AERIE_KERNELS"):
        building._compiled("true", tmp_path / "file" / "cpp", march.native())


def test_what_is_compiled_is_kept_and_a_changed_flag_makes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []

    def compile_nothing(
        command: list[str], sources: list[Path], library: Path, *, seconds: float, idle_seconds: float
    ) -> Path:
        calls.append(library)
        library.write_text("compiled")
        return library

    monkeypatch.setattr(building, "_version", lambda _: "1")
    monkeypatch.setattr(building, "compiled", compile_nothing)
    first = building._compiled("c++", tmp_path, march.native())
    assert building._compiled("c++", tmp_path, march.native()) == first and len(calls) == 1
    monkeypatch.setattr(building, "_FLAGS", ("-O2",))
    assert building._compiled("c++", tmp_path, march.native()) != first and len(calls) == 2


def test_torch_s_kernels_need_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise AssertionError("asked for what nobody wants")

    monkeypatch.setattr("aerie.native.kernels.table.missing", missing)
    assert choose_kernels(parse_config({"engine": {"kernels": "torch"}}), CPU).report == "none"
