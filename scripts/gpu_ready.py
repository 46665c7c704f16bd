"""Reports what a machine has and lacks for `make gpu-check` and `make gpu-bench`; exits with code 1 if tests or
measurements cannot start.

    python scripts/gpu_ready.py
"""

import importlib
import importlib.util
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HOME))
NOT_THERE = {"ruff", "mypy", "gguf", "scipy", "types-pyyaml", "flashinfer-python", "triton"}
"""Development tools, and packages that are reported separately."""


def missing_packages() -> list[str]:
    """Names of packages that Aerie, its training and its tests import and that are not installed."""
    project = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["train"], *extras["dev"]]
    names = {re.split(r"[\[<>=;!~ ]", need)[0].lower() for need in asked} - NOT_THERE - {project["name"]}
    return sorted(name for name in names if release(name) is None)


def broken_imports() -> str:
    """The error of a package that is installed but lacks one that it needs."""
    for name in ("transformers", "openai", "fastapi", "tokenizers", "matplotlib.pyplot", "aerie.commands.app"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"{name} ({error})"
    return ""


def release(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> int:
    missing = missing_packages()
    print(f"Python {sys.version.split()[0]}, PyTorch {release('torch')}, Triton {release('triton')}")
    if missing:
        print(f"missing packages: {' '.join(missing)}; make gpu-kit brings them")
        return 1
    broken = broken_imports()
    if broken:
        print(f"installed, and cannot be imported: {broken}")
        return 1
    import torch

    from aerie.contracts.errors import ConfigError
    from aerie.engine.attention.flashinfer_modules import compiler, prebuilt, served_by
    from aerie.engine.attention.flashinfer_variant import DTYPES, module_name

    flashinfer, ffi = release("flashinfer-python"), release("apache-tvm-ffi")
    print(f"FlashInfer {flashinfer}, apache-tvm-ffi {ffi}, nvcc {compiler()}")
    if not torch.cuda.is_available():
        print("no GPU with a working driver: only --quick runs on a CPU show anything here")
        return 0
    capability = torch.cuda.get_device_capability()
    free, total = (count / 2**30 for count in torch.cuda.mem_get_info())
    print(f"{torch.cuda.get_device_name()}, compute capability {capability}, {free:.1f} of {total:.1f} GiB free")
    if flashinfer is None or importlib.util.find_spec("tvm_ffi") is None:
        print("no FlashInfer: attention will be Triton's")
        return 0
    for dtype, head_dim in ((dtype, head_dim) for dtype in DTYPES for head_dim in (64, 128)):
        name = module_name(dtype, head_dim)
        found = prebuilt(flashinfer, served_by(capability), name)
        print(f"attention module {name}: {found or 'not prebuilt; ' + ('nvcc will' if compiler() else 'NOTHING CAN')}")
    try:
        _load(torch.bfloat16)
    except (ConfigError, RuntimeError, ImportError, OSError) as error:
        print(f"the module of bf16 and 64 cannot be loaded: {error}")
    return 0


def _load(dtype: object) -> None:
    import torch

    from aerie.engine.attention.flashinfer_modules import load_module
    from aerie.engine.attention.inputs import AttentionShape

    assert isinstance(dtype, torch.dtype)
    load_module(AttentionShape(4, 2, 64, 16, dtype, torch.device("cuda")))
    print("the module of bf16 and 64 loads")


if __name__ == "__main__":
    sys.exit(main())
