"""Brings vLLM and SGLang to a GPU's machine without a network, in parts that fit one transfer each, and measures them.

    python scripts/gpu_peers.py fetch vllm          # with a network: wheels under build/gpu-peers/vllm/wheels
    python scripts/gpu_peers.py cut vllm            # part-00, part-01, ... of at most 56 MiB, and manifest.json
    python scripts/gpu_peers.py join vllm           # there, once all parts are in that folder: unpacks them
    python scripts/gpu_peers.py try vllm            # imports it; says what is missing
    python scripts/gpu_peers.py measure --out peers.json

The sets are slim: `PEERS` says what is left out, and every cell repeats it. Releases are those that pin the PyTorch of
the machine. What is not there, or cannot be imported, is a cell that says so, not an error.
"""

import argparse
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from gpu_peer_sets import DECODING, ENGINES, PEERS, STUB

HOME = Path(__file__).resolve().parents[1]
FOLDER = HOME / "build/gpu-peers"
MOST = 56 << 20
"""Bytes of a part: with the sources (scripts/gpu_set.py) it fits in 64 MiB."""
_PATIENT = 600
"""Seconds of an import that is tried alone: a busy machine without a GPU takes minutes."""
_GLIBC = ("2_17", "2_27", "2_28", "2_31", "2_34", "2_35")

Cell = dict[str, Any]


def fetch(name: str, python: str) -> None:
    wheels = FOLDER / name / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    platforms = [f"--platform=manylinux_{version}_x86_64" for version in _GLIBC]
    platforms += ["--platform=manylinux2014_x86_64", "--platform=any"]
    of = ["--no-deps", "--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", *of, "--dest", str(wheels), *PEERS[name].pins]
    subprocess.run(pip, check=True)


def cut(name: str, most: int = MOST) -> int:
    """The number of parts."""
    home, peer = FOLDER / name, PEERS[name]
    kept, whole = home / "set", home / "set.tar.gz"
    shutil.rmtree(kept, ignore_errors=True)
    for wheel in sorted((home / "wheels").glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            names = [
                file for file in archive.namelist() if not any(fnmatch.fnmatch(file, drop) for drop in peer.dropped)
            ]
            archive.extractall(kept, names)
    with tarfile.open(whole, "w:gz") as archive_of_all:
        archive_of_all.add(kept, arcname=".")
    for old in home.glob("part-*"):
        old.unlink()
    digests = {}
    with open(whole, "rb") as source:
        while piece := source.read(most):
            part = home / f"part-{len(digests):02}"
            part.write_bytes(piece)
            digests[part.name] = hashlib.sha256(piece).hexdigest()
    whole.unlink()
    shutil.rmtree(kept)
    (home / "manifest.json").write_text(json.dumps(digests) + "\n", encoding="utf-8")
    return len(digests)


def join(name: str) -> str | None:
    """Unpacks the parts; a reason if they are not all there."""
    home = FOLDER / name
    if not (home / "manifest.json").is_file():
        return f"no {home}/manifest.json: fetch and cut it on a machine with a network, and bring the folder"
    digests = json.loads((home / "manifest.json").read_text(encoding="utf-8"))
    whole = home / "set.tar.gz"
    with open(whole, "wb") as target:
        for part, digest in digests.items():
            piece = (home / part).read_bytes() if (home / part).is_file() else b""
            if hashlib.sha256(piece).hexdigest() != digest:
                whole.unlink()
                return f"{part} of {len(digests)} parts is missing or broken"
            target.write(piece)
    with tarfile.open(whole) as archive:
        archive.extractall(home / "site", filter="data")
    whole.unlink()
    for stub in PEERS[name].stubs:
        (home / "site" / stub).parent.mkdir(exist_ok=True)
        (home / "site" / stub).write_text(STUB, encoding="utf-8")
    return None


def importable(name: str, seconds: float = 120) -> str | None:
    """None if the peer can be imported, else why not: in a process of its own, since it may crash or hang."""
    site = FOLDER / name / "site"
    if not site.is_dir() and (reason := join(name)) is not None:
        return reason
    done = _python(name, f"from {PEERS[name].module} import {PEERS[name].engine}", seconds)
    return None if done is not None and done.returncode == 0 else _last_line(done, seconds)


def _python(name: str, code: str, seconds: float) -> "subprocess.CompletedProcess[str] | None":
    paths = os.pathsep.join([str(FOLDER / name / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        return subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            timeout=seconds,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def _last_line(done: "subprocess.CompletedProcess[str] | None", seconds: float) -> str:
    if done is None:
        return f"took longer than {seconds:.0f} s"
    lines = done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"]
    return lines[-1]


def measure(name: str, shape: Path, batches: str, seconds: float) -> list[Cell]:
    """Greedy plain decoding: seconds a step are the difference of answers of two lengths."""
    origin: Cell = {"peer": name, "pins": PEERS[name].pins[:2], "left_out": PEERS[name].left_out}
    reason = importable(name)
    if reason is not None:
        return [origin | {"not_measured": reason}]
    arguments, answer = ENGINES[name]
    code = DECODING.format(
        module=PEERS[name].module, engine=PEERS[name].engine, arguments=arguments.format(shape=shape),
        answer=answer, batches=f"({batches},)", prompt=1000, few=20, many=80,
    )  # fmt: skip
    done = _python(name, code, seconds)
    found = [] if done is None else [line for line in done.stdout.splitlines() if line.startswith("CELLS ")]
    if not found:
        return [origin | {"not_measured": _last_line(done, seconds)}]
    rows = json.loads(found[0].removeprefix("CELLS "))
    return [origin | {"batch": batch, "step_ms": 1e3 * step, "tokens_per_s": batch / step} for batch, step in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("fetch", "cut", "join", "try", "measure"))
    parser.add_argument("peers", nargs="*", metavar="peer", help="vllm, sglang; both by default")
    parser.add_argument("--python", default="3.12", help="of the GPU's machine")
    parser.add_argument("--shape", type=Path, default=HOME / "build/gpu-shape/target")
    parser.add_argument("--batches", default="1,8,64")
    parser.add_argument("--seconds", type=float, default=110, help="of each measured peer")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="one row")
    given = parser.parse_args()
    cells: list[Cell] = []
    for name in given.peers or PEERS:
        if given.command == "fetch":
            fetch(name, given.python)
        elif given.command == "cut":
            print(f"{name}: {cut(name)} parts under {FOLDER / name}")
        elif given.command in ("join", "try"):
            reason = join(name) if given.command == "join" else importable(name, _PATIENT)
            print(f"{name}: {reason or 'is there'}")
        else:
            cells += measure(name, given.shape, "1" if given.quick else given.batches, given.seconds)
            print(cells[-1])
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({"cells": cells, "command": sys.argv}) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
