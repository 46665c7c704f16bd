"""Compiles the attention modules for named architectures and packs them; `make kernels ARCHS="90a"` runs it.

It needs FlashInfer's generator and nvcc, but no GPU. Modules are written where engine/attention/flashinfer_modules.py
looks for them, beside a manifest, and to one archive per architecture, to be unpacked under build/kernels elsewhere.
"""

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import torch

from aerie.contracts.errors import AerieError, ConfigError
from aerie.engine.attention.flashinfer_modules import compiler, prebuilt_path
from aerie.engine.attention.flashinfer_variant import DTYPES, HEAD_DIMS, jit_arguments, module_name
from aerie.engine.kernels.folder import folder

_log = logging.getLogger(__name__)
_FIRST_WITH_BFLOAT16 = 80


def main(architectures: list[str], dtypes: list[str], head_dims: list[int]) -> None:
    """Raises ConfigError if a name is unknown or the compiler is missing."""
    nvcc = compiler()
    if nvcc is None:
        raise ConfigError("no CUDA compiler: install one, or name its folder in CUDA_HOME")
    unknown = sorted(set(architectures) - known_architectures(nvcc))
    if unknown or not architectures:
        raise ConfigError(f"ARCHS has {' '.join(unknown) or 'nothing'}; {nvcc} knows {_listed(nvcc)}")
    names = {name: dtype for dtype, name in DTYPES.items()}
    if set(dtypes) - set(names) or set(head_dims) - set(HEAD_DIMS):
        raise ConfigError(f"DTYPES are of {' '.join(names)} and HEAD_DIMS of {' '.join(map(str, HEAD_DIMS))}")
    for architecture in architectures:
        for name in dtypes:
            if name == "bf16" and int(architecture.rstrip("af")) < _FIRST_WITH_BFLOAT16:
                _log.info("sm_%s has no units for bf16: skipped", architecture)
                continue
            for head_dim in head_dims:
                build(nvcc, architecture, names[name], head_dim)
        pack(architecture)


def known_architectures(nvcc: Path) -> set[str]:
    """The architectures that nvcc lists, without their prefix: 80, 90a, 120a."""
    listed = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=True).stdout.split()
    plain = {code.removeprefix("sm_") for code in listed}
    return plain | {f"{code}a" for code in plain if code.isdigit() and int(code) >= 90}


def build(nvcc: Path, architecture: str, dtype: torch.dtype, head_dim: int) -> Path:
    """Compiles one module, unless it exists -> its file. FlashInfer reads its settings at import, so each compilation
    runs in a separate process.
    """
    import flashinfer

    name = module_name(dtype, head_dim)
    target = prebuilt_path(flashinfer.__version__, architecture, name)
    if target.is_file():
        _log.info("%s for sm_%s is there", name, architecture)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, **_settings(nvcc, architecture, Path(scratch))}
        module = "aerie.engine.attention.flashinfer_prebuild"
        code = f"from {module} import compile_one; compile_one('{DTYPES[dtype]}', {head_dim})"
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        built = next(Path(scratch).rglob(f"{name}.so"), None)
        if built is None:
            raise AerieError(
                f"{name} for sm_{architecture} did not compile:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
            )
        shutil.copyfile(built, target)
    _log.info(
        "%s for sm_%s: %.0f s, %.1f MiB", name, architecture, time.monotonic() - started, target.stat().st_size / 2**20
    )
    return target


def compile_one(dtype: str, head_dim: int) -> None:
    """Runs in the process of one compilation."""
    from flashinfer.jit.attention import gen_customize_batch_prefill_module

    taken = {name: each for each, name in DTYPES.items()}[dtype]
    gen_customize_batch_prefill_module("fa2", *jit_arguments(taken, head_dim)).build(verbose=False)


def pack(architecture: str) -> Path:
    """An archive of an architecture's modules, with a manifest of its contents."""
    import flashinfer

    home = prebuilt_path(flashinfer.__version__, architecture, "").parent
    modules = sorted(home.glob("*.so"))
    manifest = {
        "flashinfer": flashinfer.__version__,
        "architecture": f"sm_{architecture}",
        "modules": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in modules},
    }
    (home / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    archive = folder() / f"aerie-kernels-flashinfer-{flashinfer.__version__}-sm_{architecture}.zip"
    with ZipFile(archive, "w", ZIP_DEFLATED) as packed:
        for path in (*modules, home / "manifest.json"):
            packed.write(path, path.relative_to(folder()))
    _log.info("%s: %d modules, %.1f MiB", archive, len(modules), archive.stat().st_size / 2**20)
    return archive


def _settings(nvcc: Path, architecture: str, scratch: Path) -> dict[str, str]:
    """Environment for FlashInfer's build. A machine without a driver has no libcuda to link against; an empty one
    serves, since nothing in it is called.
    """
    digits = architecture.rstrip("af")
    major, minor, suffix = digits[:-1], digits[-1], architecture.removeprefix(digits)
    empty = scratch / "empty.c"
    empty.write_text("void aerie_empty(void) {}\n", encoding="ascii")
    library = ["-shared", "-Wl,-soname,libcuda.so.1", "-o", str(scratch / "libcuda.so"), str(empty)]
    subprocess.run(["cc", *library], check=True)
    return {
        "CUDA_HOME": str(_toolkit(nvcc)),
        "FLASHINFER_CUDA_ARCH_LIST": f"{major}.{minor}{suffix}",
        "FLASHINFER_WORKSPACE_BASE": str(scratch),
        "FLASHINFER_EXTRA_LDFLAGS": f"-L{scratch} {os.environ.get('FLASHINFER_EXTRA_LDFLAGS', '')}".strip(),
    }


def _toolkit(nvcc: Path) -> Path:
    """The folder with the compiler's headers; `nvcc` on the path may be a script that calls the real one."""
    for home in (nvcc.parents[1], nvcc.resolve().parents[1], Path("/usr/local/cuda")):
        if (home / "include" / "cuda_runtime.h").is_file():
            return home
    raise ConfigError(f"{nvcc} has no cuda_runtime.h beside it; name the toolkit's folder in CUDA_HOME")


def _listed(nvcc: Path) -> str:
    return " ".join(sorted(known_architectures(nvcc), key=lambda code: (int(code.rstrip("af")), code)))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        main(sys.argv[1].split(), sys.argv[2].split(), [int(size) for size in sys.argv[3].split()])
    except AerieError as error:
        sys.exit(f"aerie: {error}")
