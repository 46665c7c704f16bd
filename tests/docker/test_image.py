"""The CPU image, really built and run as compose runs it: healthy, answers, drains, non-root, read-only. Of the GPU's
image what a stubbed driver can show: its modules are found, and on another GPU attention is Triton's.

Only with `--image`, as `make image-test` gives it: a build downloads PyTorch.
"""

import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.docker import podman

pytestmark = pytest.mark.timeout(5400)
QUESTION = [{"role": "user", "content": "Count from 20 to 60 in steps of 2."}]
_START_SECONDS = 600
_MODELS = "aerie-image-test-models"
"""A volume, as compose has one: it keeps what the first start compiles."""


@dataclass
class Container:
    name: str
    url: str

    def run(self, *words: str) -> tuple[int, str]:
        done = podman.say("podman", "exec", self.name, *words)
        return done.returncode, done.stdout + done.stderr

    def inspect(self, field: str) -> str:
        return podman.say("podman", "inspect", self.name, "--format", "{{" + field + "}}").stdout.strip()

    def post(self, route: str, body: dict[str, Any], seconds: float = 120) -> Any:
        request = urllib.request.Request(
            self.url + route, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        return urllib.request.urlopen(request, timeout=seconds)


_CHOICE = """
import logging, sys, torch, types
capability = tuple(map(int, sys.argv[1:]))
torch.cuda.get_device_capability = lambda *_: capability
torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(multi_processor_count=132)
from aerie.engine.attention import _fastest, flashinfer_modules
from aerie.engine.attention.inputs import AttentionShape
from aerie.engine.kernels.folder import folders
logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
flashinfer_modules._loaded = lambda ffi, path: print("found", path)
print(folders()[0], _fastest(AttentionShape(32, 8, 64, 16, torch.bfloat16, torch.device("cuda"))))
"""
"""Which attention a GPU of that capability gets; a module is found, and not loaded into a process without CUDA."""


@pytest.fixture(scope="module")
def image(request: pytest.FixtureRequest) -> str:
    _asked_for(request)
    built = podman.build()
    podman.say("podman", "volume", "rm", "--force", _MODELS)  # each run compiles
    return built


@pytest.fixture(scope="module")
def gpu_image(request: pytest.FixtureRequest) -> str:
    """With one module, since each compiles for minutes."""
    _asked_for(request)
    return podman.build("gpu", KERNEL_ARCHS="90a", KERNEL_DTYPES="bf16", KERNEL_HEAD_DIMS="64")


def _asked_for(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--image", default=False):
        pytest.skip("images are built by make image-test only")


@pytest.mark.parametrize(("capability", "said"), [(("9", "0"), "found /opt/kernels/"), (("8", "0"), "takes Triton")])
def test_the_gpu_s_image_finds_its_modules_or_takes_triton(
    gpu_image: str, capability: tuple[str, str], said: str
) -> None:
    hardened = ["--rm", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    words = ["podman", "run", *hardened, "--entrypoint", "python", gpu_image, "-c", _CHOICE, *capability]
    done = podman.say(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert sum(said in line for line in lines) == 1, done.stdout + done.stderr
    assert lines[-1] == f"/models/kernels {'flashinfer' if 'found' in said else 'triton'}"


@contextlib.contextmanager
def started(image: str, *command: str) -> Iterator[Container]:
    """As compose starts it, on a port and with routes that the environment chooses, as a managed platform does."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    name = f"aerie-image-test-{port}"
    hardened = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    routes = {"AIP_HTTP_PORT": str(port), "AIP_HEALTH_ROUTE": "/alive", "AIP_PREDICT_ROUTE": "/predict"}
    named = [word for key, value in routes.items() for word in ("--env", f"{key}={value}")]
    named += ["--volume", f"{_MODELS}:/models"]
    done = podman.say("podman", "run", "-d", "--name", name, "--network", "host", *hardened, *named, image, *command)
    assert done.returncode == 0, done.stderr
    running = Container(name, f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + _START_SECONDS
        while podman.say("podman", "healthcheck", "run", name).returncode:
            assert time.monotonic() < deadline, podman.say("podman", "logs", name).stderr
            assert running.inspect(".State.Status") == "running", podman.say("podman", "logs", name).stderr
            time.sleep(0.5)
        yield running
    finally:
        podman.say("podman", "rm", "--force", "--time", "1", name)


@pytest.fixture
def container(image: str) -> Iterator[Container]:
    with started(image) as running:
        yield running


@pytest.fixture
def patient(image: str) -> Iterator[Container]:
    """One that gives running requests all the time that a slow machine needs."""
    config = ["serve", "configs/serve/demo.yaml", "server.host=0.0.0.0", "server.drain_seconds=300"]
    with started(image, *config) as running:
        yield running


def test_it_is_healthy_answers_and_can_do_no_harm(container: Container) -> None:
    asked = {"messages": QUESTION, "max_tokens": 24, "temperature": 0}
    with container.post("/v1/chat/completions", asked) as answer:
        reported = json.load(answer)
    text = reported["choices"][0]["message"]["content"]
    assert text and reported["usage"]["speculation"]["drafted"] > 0
    with container.post("/predict", {"instances": [asked, asked]}) as answer:
        assert [one["choices"][0]["message"]["content"] for one in json.load(answer)["predictions"]] == [text, text]
    with urllib.request.urlopen(f"{container.url}/config", timeout=10) as answer:
        assert json.load(answer)["engine"]["kernels"].startswith("cpp: ")
    assert container.run("id", "-u") == (0, "10001\n")
    assert container.run("cat", "/proc/1/status")[1].count("Uid:\t10001\t10001") == 1
    for place in ("/opt/aerie/new", "/opt/venv/new", "/etc/new"):
        code, said = container.run("touch", place)
        assert code != 0 and "Read-only file system" in said
    assert container.run("touch", "/tmp/new")[0] == 0
    code, said = container.run("cat", "/proc/1/status")
    assert "CapEff:\t0000000000000000" in said and "NoNewPrivs:\t1" in said


def test_sigterm_lets_a_stream_end_and_leaves_with_0(patient: Container) -> None:
    body = {"messages": QUESTION, "max_tokens": 900, "temperature": 0, "ignore_eos": True, "stream": True}
    with patient.post("/v1/chat/completions", body, 300) as stream:
        first = stream.readline()
        assert first.startswith(b"data: ")
        stop = threading.Thread(target=podman.say, args=("podman", "stop", "--time", "330", patient.name))
        stop.start()
        refused = _refusal(patient)
        rest = stream.read().decode()
    stop.join(60)
    assert refused["error"]["code"] == "draining"
    events = [line for line in rest.splitlines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert patient.inspect(".State.ExitCode") == "0"


def _refusal(container: Container) -> dict[str, Any]:
    """What /ready says once the drain has begun."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{container.url}/alive", timeout=5).close()
        except urllib.error.HTTPError as error:
            said: dict[str, Any] = json.load(error)
            return said
        time.sleep(0.02)
    raise AssertionError("the drain was not seen")
