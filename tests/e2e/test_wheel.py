"""Aerie in a folder of somebody else's, with files under names that Aerie has too: a wheel serves the demo there and
finds its head, and an editable installation finds its own modules.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import HOME, SMALL
from tests.house import MAY_IMPORT
from tests.patience import PATIENCE, until

BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "configs", "models", *MAY_IMPORT)
OFFLINE = """
import json
from aerie import LLM, SamplingParams
from aerie.engine.kernels.folder import folder
settings = {"engine__threads": 1, "engine__kv_tokens": 4096, "engine__kernels": "torch", "spec__head": "auto"}
settings["spec__planner"] = "fixed"
with LLM("configs/serve/demo.yaml", **settings) as llm:
    [answer] = llm.generate("textwrap.dedent", SamplingParams(temperature=0, max_tokens=12))
print(json.dumps({"drafted": answer.usage.drafted, "head": llm.config.spec.head, "kernels": str(folder())}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a wheel of these sources was installed into."""
    sources, wheels, target = (tmp_path_factory.mktemp(name) for name in ("sources", "wheels", "installed"))
    for name in BUILT_FROM:
        if (HOME / name).is_dir():
            shutil.copytree(HOME / name, sources / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy(HOME / name, sources)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
    without = ["--no-index", "--no-deps"]
    build = [*pip, "wheel", *without, "--no-build-isolation", "--wheel-dir", str(wheels), str(sources)]
    subprocess.run(build, check=True)
    [wheel] = wheels.iterdir()
    assert wheel.name.startswith("aerie_serve-")
    subprocess.run([*pip, "install", *without, "--target", str(target), str(wheel)], check=True)
    return target


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with files of its owner's under names that Aerie has too."""
    folder = tmp_path / "elsewhere"
    for name in ("models/demo/target/config.json", "configs/head/odd.yaml", "build/keep"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("not Aerie's")
    for name in ("server/__init__.py", "contracts/__init__.py", "engine.py", "train.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("raise RuntimeError('not Aerie\\'s')")
    return folder


@pytest.fixture
def environment(installed: Path, tmp_path: Path) -> dict[str, str]:
    own = {"PYTHONPATH": str(installed), "XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    without = {"AERIE_KERNELS", "PYTHONHOME"}
    kept = {name: value for name, value in os.environ.items() if name not in without}
    return kept | own | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def unchanged(installed: Path, elsewhere: Path) -> Iterator[None]:
    """Neither the installation nor the working directory is written to."""
    before = {path for folder in (installed, elsewhere) for path in folder.rglob("*")}
    yield
    assert {path for folder in (installed, elsewhere) for path in folder.rglob("*")} == before


@pytest.mark.usefixtures("unchanged")
def test_it_serves_the_demo_and_finds_its_head(installed: Path, elsewhere: Path, environment: dict[str, str]) -> None:
    command = [installed / "bin/aerie", "serve", "configs/serve/demo.yaml", *SMALL]
    command += ["spec.head=auto", "engine.kernels=torch"]
    log = elsewhere.parent / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, cwd=elsewhere, env=environment, stdout=output, stderr=output)
    try:
        until(lambda: "print(answer" in log.read_text() or server.poll() is not None, "never ready")
        assert server.poll() is None, log.read_text()
        url = re.search(r"at (http://127\.0\.0\.1:\d+)", log.read_text())
        assert url is not None
        with urllib.request.urlopen(f"{url[1]}/config", timeout=PATIENCE) as answer:
            config = json.load(answer)["config"]
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
    assert config["spec"]["head"] == str(installed / "aerie/models/demo/head")
    assert config["model"]["path"] == str(installed / "aerie/models/demo/target")


@pytest.mark.usefixtures("unchanged")
def test_offline_it_drafts_and_keeps_kernels_in_the_user_s_cache(
    installed: Path, elsewhere: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["drafted"] > 0 and said["head"] == str(installed / "aerie/models/demo/head")
    assert said["kernels"] == str(tmp_path / "cache/aerie/kernels")


@pytest.mark.parametrize("how", [["-m", "aerie", "settings"], ["-c", "from aerie import LLM; import aerie.server.run"]])
def test_the_editable_installation_works_there_too(elsewhere: Path, how: list[str]) -> None:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, *how], cwd=elsewhere, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_package_is_listed() -> None:
    setup = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    packages = {
        ".".join(("aerie", *(part for part in path.parent.relative_to(HOME).parts if part != "aerie")))
        for room in MAY_IMPORT
        for path in (HOME / room).rglob("__init__.py")
    }
    assert set(setup["packages"]) == packages | set(setup["package-dir"])
    assert set(setup["package-dir"]) == {f"aerie.{room}" for room in {*MAY_IMPORT, "configs", "models"} - {"aerie"}}
