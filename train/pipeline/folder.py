"""A stage's folder: missing, begun, or complete. Every stage writes through this module and reads earlier stages with
it.

A stage writes into `NAME.partial`, whose manifest records the stage's inputs from the start. One rename makes it `NAME`
after the manifest is complete. So a stage that was killed or ran out of disk never looks finished, and a restarted one
continues only work on the same inputs. Nothing in a manifest depends on time or kills.
"""

import contextlib
import errno
import json
import os
import platform
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from aerie.contracts.errors import AerieError
from aerie.contracts.provenance import file_hash

MANIFEST = "manifest.json"
_LIBRARIES = ("aerie", "torch", "transformers", "tokenizers", "safetensors", "numpy")
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class Finished(AerieError):
    """The folder already holds the output for the same config and inputs."""


class BegunStage:
    """A stage at work. `path` is its partial folder; `resumed` means that an earlier start left something there."""

    def __init__(self, final: Path, begun: dict[str, Any]) -> None:
        self._final = final
        self._begun = begun
        self.path = final.with_name(final.name + ".partial")
        self.resumed = self.path.exists()
        if self.resumed:
            _check_same(self.path, begun)
        with reported_when_full(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / MANIFEST, _json_bytes(begun))

    def finish(self, counts: Mapping[str, Any]) -> Path:
        """Completes the manifest and renames the folder; returns it."""
        outputs = {
            path.relative_to(self.path).as_posix(): {"sha256": file_hash(path), "bytes": path.stat().st_size}
            for path in sorted(self.path.rglob("*"))
            if path.is_file() and path.name != MANIFEST
        }
        manifest = {**self._begun, "versions": _versions(), "counts": dict(counts), "outputs": outputs}
        with reported_when_full(self.path):
            write_whole(self.path / MANIFEST, _json_bytes(manifest))
        self.path.rename(self._final)
        return self._final


def begin(work: Path, stage: str, config: Mapping[str, Any], inputs: Mapping[str, str]) -> BegunStage:
    """Begins or resumes `work`/`stage`. `inputs` are hashes by name.

    Raises Finished if it is already done, AerieError if the folder was made with another config or other inputs.
    """
    final, begun = work / stage, {"stage": stage, "config": dict(config), "inputs": dict(inputs)}
    if final.exists():
        _check_same(final, begun)
        raise Finished(f"{final} is finished and is never written over; give --again to make it anew")
    return BegunStage(final, begun)


def discard(work: Path, stage: str) -> None:
    """Removes a stage's folder, finished or not."""
    for folder in (work / stage, work / f"{stage}.partial"):
        shutil.rmtree(folder, ignore_errors=True)


def linked(work: Path, folder: Path, stages: Iterable[str]) -> Path:
    """Makes `folder`, in which the finished ones of these stages of `work` are links; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    for stage in stages:
        if (work / stage).exists() and not (folder / stage).exists():
            (folder / stage).symlink_to((work / stage).resolve(), target_is_directory=True)
    return folder


def manifest_of(work: Path, stage: str) -> dict[str, Any]:
    """The manifest of a finished stage whose files are unchanged. Raises AerieError that names the command to run."""
    folder = work / stage
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        begun = " (it was begun and not finished)" if folder.with_name(stage + ".partial").exists() else ""
        raise AerieError(
            f"the stage {stage} has no output in {work}{begun}; run it first: aerie train {stage}"
        ) from None
    for name, recorded in manifest["outputs"].items():
        found = (folder / name).stat().st_size if (folder / name).exists() else None
        if found != recorded["bytes"]:
            size = "is missing" if found is None else f"has {found} bytes"
            raise AerieError(
                f"{folder / name} {size}; its manifest says {recorded['bytes']}: run the stage {stage} again"
            )
    return manifest


def input_hash(work: Path, stage: str) -> str:
    """The hash of an earlier stage's manifest, which has the hashes of its files; later stages record it."""
    manifest_of(work, stage)
    return file_hash(work / stage / MANIFEST)


def write_whole(path: Path, data: bytes) -> None:
    """Writes the file with these bytes, or leaves it as it was."""
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.write_bytes(data)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    os.replace(fresh, path)


@contextlib.contextmanager
def reported_when_full(path: Path) -> Iterator[None]:
    """Turns a full disk into an error that says what to do."""
    try:
        yield
    except Exception as error:
        number = _number(error)
        if number not in _FULL:
            raise
        room = next((place for place in (path, *path.parents) if place.exists()), Path("/"))
        raise AerieError(
            f"the disk of {path} is full ({os.strerror(number)}, {shutil.disk_usage(room).free} bytes free); what was "
            f"written whole is kept: free some room and start the stage again, and it goes on from there"
        ) from None


def _number(error: Exception) -> int | None:
    """The operating system's error number; safetensors and tokenizers, which do their own writing, have it in their
    texts.
    """
    if isinstance(error, OSError):
        return error.errno
    recorded = re.search(r"os error (\d+)", str(error))
    return None if recorded is None else int(recorded[1])


def _check_same(folder: Path, begun: dict[str, Any]) -> None:
    path = folder / MANIFEST
    earlier = json.loads(path.read_text(encoding="utf-8")) if path.exists() else begun
    now = json.loads(_json_bytes(begun))
    for part in ("config", "inputs"):
        for key in sorted({*earlier[part], *now[part]}):
            was, new = earlier[part].get(key), now[part].get(key)
            if was != new:
                raise AerieError(
                    f"{folder} was made with another {key.replace('_', ' ')} ({part}: {_short(was)}, now "
                    f"{_short(new)}); give --again to make it anew"
                )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:200] + "..."


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for library in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


def _json_bytes(data: Any) -> bytes:
    return (json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
