"""The images, built by buildah and run by podman: no Docker daemon, no settings of the machine's own. Used by
test_image.

Everything lies in `build/image`, which may be deleted. BASE_IMAGE names another base (one with Python 3.11 or newer in
/usr/bin or /usr/local/bin); without it and without a registry, mmdebstrap makes one of Debian packages.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.conftest import HOME, found

FOLDER = HOME / "build/image"
IMAGE = "localhost/aerie:image-test"
_BASE = "docker.io/library/python:3.12-slim-bookworm"
_DEBIAN = "localhost/aerie-base:bookworm"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_ENGINE = """[containers]
# Limits of the machine's own may be lower than podman's, and raising them is not everyone's to do.
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
_STORAGE = """[storage]
driver = "{driver}"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""


def build(target: str = "cpu", **arguments: str) -> str:
    """An image of the working tree, with arguments of the Dockerfile -> its name."""
    found("buildah", "Debian's package has that name")
    found("podman", "Debian's package has that name")
    _configure()
    base = _base()
    words = ["buildah", "bud", "--format", "docker", "--isolation", "chroot", "--network", "host", "--layers"]
    words += [f"--volume={path}:{inside}:ro" for path, inside in _mounts()]
    if _CERTIFICATES.is_file():
        words += ["--build-arg", f"SSL_CERT_FILE={_CERTIFICATES}"]
    words += ["--build-arg", f"BUILD_IMAGE={base}", "--build-arg", f"RUNTIME_IMAGE={base}"]
    words += ["--build-arg", f"TORCH_INDEX={os.environ.get('TORCH_INDEX', '')}"]
    words += [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    image = f"{IMAGE}-{target}"
    done = say(*words, "--target", target, "-f", "docker/Dockerfile", "-t", image, ".")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return image


def say(*words: str, seconds: float = 3600) -> subprocess.CompletedProcess[str]:
    """A command of buildah or podman on our own storage."""
    own = {"CONTAINERS_CONF": str(FOLDER / "containers.conf"), "CONTAINERS_STORAGE_CONF": str(FOLDER / "storage.conf")}
    return subprocess.run(
        words, cwd=HOME, env=os.environ | own, capture_output=True, text=True, check=False, timeout=seconds
    )


def _configure() -> None:
    """Files of settings. overlay where it works: vfs copies every layer."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    runtime = 'runtime = "runc"\n' if shutil.which("runc") else ""
    (FOLDER / "containers.conf").write_text(_ENGINE + runtime, encoding="utf-8")
    for driver in ("overlay", "vfs"):
        (FOLDER / "storage.conf").write_text(_STORAGE.format(driver=driver, folder=FOLDER), encoding="utf-8")
        if say("podman", "info").returncode == 0:
            return
    pytest.skip(f"podman does not work here: {say('podman', 'info').stderr}")


def _base() -> str:
    """A base image with Python: the one that is asked for, or the usual one, or one of Debian packages."""
    wanted = os.environ.get("BASE_IMAGE")
    if wanted:
        return wanted
    if say("podman", "image", "exists", _DEBIAN).returncode == 0:
        return _DEBIAN
    if say("podman", "pull", "--quiet", _BASE).returncode == 0:
        return _BASE
    found("mmdebstrap", f"{_BASE} cannot be pulled; mmdebstrap would make a base, or name one with BASE_IMAGE=")
    archive = FOLDER / "base.tar"
    if not archive.exists():
        packages = "--include=ca-certificates,python3,python3-venv"
        part = FOLDER / "base.part.tar"  # by the name's end mmdebstrap knows that it is not a directory
        done = say("mmdebstrap", "--variant=minbase", packages, "bookworm", str(part))
        assert done.returncode == 0, done.stderr
        part.rename(archive)
    done = say("podman", "import", "--quiet", str(archive), _DEBIAN)
    assert done.returncode == 0, done.stderr
    return _DEBIAN


def _mounts() -> Iterator[tuple[Path, Path]]:
    """What the build must see to reach what this machine's own pip reaches: certificates, pip's settings, and the
    folders that those name.
    """
    if _CERTIFICATES.is_file():
        yield _CERTIFICATES, _CERTIFICATES
    settings = _pip_settings()
    if settings:
        path = FOLDER / "pip.conf"
        lines = [f"{key} = {value}" for key, value in settings.items()]
        path.write_text("\n".join(["[global]", *lines, ""]), encoding="utf-8")
        yield path, Path("/etc/pip.conf")
    seen = set()
    for word in " ".join(settings.values()).split():
        # The pages of an index on disk point to files beside them.
        folder = Path(word.removeprefix("file://")).parent if word.startswith("file://") else Path(word)
        if folder.is_absolute() and folder.is_dir() and folder not in seen:
            seen.add(folder)
            yield folder, folder


def _pip_settings() -> dict[str, str]:
    """Of where packages come from: indexes and folders."""
    done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    settings = {}
    for line in done.stdout.splitlines():
        key, equals, value = line.partition("=")
        name = key.rpartition(".")[2]
        if equals and name in ("index-url", "extra-index-url", "find-links", "no-index", "cert"):
            settings[name] = value.strip("'\"").replace("\\n", " ")
    return settings
