"""Copies what travels to a GPU's machine into one folder: the sources without the demo's weights and results, and the
kit.

    python scripts/gpu_set.py build/gpu-set

Called by `make gpu-set` after `make gpu-kit`. Measurements draw random weights or train their own, so the demo's, most
of the repository's bytes, stay behind, and so does what other machines have measured. Ends with code 1 if the folder is
larger than some ways of copying allow.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
KIT = HOME / "build/gpu-kit"
MOST = 64 << 20
"""Bytes of sources and kit together."""
LEFT = (".safetensors", ".png", ".jsonl.gz")
"""Endings of files that stay: weights, pictures; texts to train on are exempt (`KEPT`)."""
KEPT = ("train/data/",)
RESULTS = "bench/results/"
"""What other machines have measured."""


def sources() -> list[str]:
    """Tracked files, as they are in the working tree, that travel."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=HOME, check=True, capture_output=True, text=True).stdout
    names = [name for name in listed.split("\0") if (HOME / name).is_file() and not name.startswith(RESULTS)]
    return [name for name in names if name.startswith(KEPT) or not name.endswith(LEFT)]


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    if not (KIT / "wheels").is_dir():
        sys.exit(f"no {KIT}; make gpu-kit gathers it")
    shutil.rmtree(given.out, ignore_errors=True)
    for name in sources():
        (given.out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(HOME / name, given.out / name)
    shutil.copytree(KIT, given.out / KIT.relative_to(HOME))
    size = size_of(given.out)
    print(f"{given.out}: {size / 2**20:.1f} MiB, of which the kit {size_of(KIT) / 2**20:.1f}")
    if size > MOST:
        print(f"aerie: more than {MOST >> 20} MiB: name more packages in HAVE=, or fewer modules", file=sys.stderr)
    return 0 if size <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
