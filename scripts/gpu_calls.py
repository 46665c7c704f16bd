"""What is run on a GPU that is there for minutes, in three calls: whether it is right, how fast it is, and beside
whom. `scripts/gpu_call.py` runs a call; each stage has a time limit of its own.

Stages stand in the order of what they are worth: when a call's time is over, what is left out is the last. In commands,
{python} and {bin} are those of the environment, {out} is the folder of results, {config} and {shape} name the model
that is measured and {tiny} the one whose tokens are compared; {kernels} are Triton's on a GPU, where nothing has shown
yet which of them pay. {small} and {vocabulary} are empty on a GPU, and make a rehearsal on a CPU short. The first stage
that loads a large model has time to compile Triton's kernels, which the others find compiled.
"""

from dataclasses import dataclass

CALL_SECONDS = 570
"""Of a call that may take ten minutes, transfers left out."""


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    seconds: int
    """Its time limit."""
    command: str
    needs: str | None = None
    """A stage whose failure makes this one pointless."""
    rehearsed: bool = True
    """Whether it means anything on a CPU."""
    beside: bool = False
    """Whether it times nothing: it then runs at once with the neighbours of which that is true."""


def _check(name: str, seconds: int, model: str = "{tiny}") -> Stage:
    command = f"{{python}} -m aerie probe gpu-check {model} --only {name} --json {{out}}/check-{name}.json {{small}}"
    return Stage(name, seconds, command, needs="setup", beside=True)


def _bench(name: str, seconds: int, options: str, *, stage: str | None = None, folder: str = "") -> Stage:
    out = f"{{out}}/{folder}"
    command = f"{{python}} -m aerie probe gpu-bench {{config}} --only {name} --out {out} {options} {{small}}"
    return Stage(stage or name, seconds, command, needs="setup")


def _baseline(name: str, seconds: int) -> Stage:
    command = f"{{python}} scripts/gpu_baselines.py {{shape}}/target --only {name} --out {{out}}/{name}.json {{small}}"
    return Stage(name, seconds, command, needs="setup")


SETUP = Stage("setup", 90, "test -f .venv/.carried || make gpu-setup", rehearsed=False)
_PYTEST = "{python} -m pytest -rs -W default -p no:cacheprovider"

_TIMED_FIRST = "--batches 1,8,64 --steps 50"
_SHAPES = "3,1,4;6,1,7;5,4,16;6,8,32"
_FEW_SHAPES = "--shapes '3,1,4;6,1,7' --acceptance 3 --loads 1,8,64 --steps 50"

CALLS: dict[str, tuple[Stage, ...]] = {
    "first": (
        SETUP,
        Stage("waits", 120, f"{_PYTEST} -n 6 -m gpu tests/engine/test_gpu.py -k no_step_waits", "setup", beside=True),
        _check("attention", 120, "{config}"),
        _check("graphs", 120),
        _check("speculation", 120),
        _check("soak", 120),
        Stage("triton", 120, f"{_PYTEST} -n 4 {{triton_tests}}", "setup", beside=True),
        _bench("plain", 120, _TIMED_FIRST),
        _bench("profile", 60, "--few 1"),
        _bench("speculation", 150, _FEW_SHAPES, stage="drafts"),
        _bench("references", 60, "--few 1,64 --steps 30"),
    ),
    "second": (
        SETUP,
        _bench("plain", 90, "--steps 100"),
        _bench("speculation", 150, f"--shapes '{_SHAPES}' --acceptance 3 --loads 1,8,64 --steps 60", stage="drafts"),
        _bench("profile", 60, "--few 1,64"),
        _bench("products", 60, ""),
        _bench("kernels", 60, ""),
        _bench(
            "speculation",
            100,
            f"--shapes '{_SHAPES}' --acceptance 4.5 --loads 1,64 --steps 60",
            stage="long_drafts",
            folder="long",
        ),
        _bench("attention", 90, ""),
    ),
    "third": (
        SETUP,
        Stage("shape", 20, "{python} scripts/gpu_shape.py {shape} build/gpu-shape {vocabulary}"),
        Stage(
            "http",
            200,
            "sed 's/engine.kernels=triton/engine.kernels={kernels}/' configs/sweep/gpu-http.yaml > build/gpu-http.yaml"
            " && PATH={bin}:$PATH {python} -m aerie bench sweep build/gpu-http.yaml --out {out}/http",
            needs="shape",
        ),
        _baseline("graph", 60),
        _bench("sampling", 90, "--few 1,64 --steps 50"),
        _baseline("transformers", 150),
        Stage("peers", 240, "{python} scripts/gpu_peers.py measure --out {out}/peers.json {small}", needs="shape"),
        Stage("pair", 200, "{python} scripts/gpu_pair.py --json {out}/pair.json", needs="setup", rehearsed=False),
    ),
}
