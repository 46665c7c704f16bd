"""What a step may launch, counted on a GPU that computes nothing: operators a layer and a step, copies each way, and
passes over the vocabulary of greedy, sampled and filtered rows.

An operator that makes or writes a tensor is a launch; views are free. A kernel that replaces several counts once. The
budgets are what the code launches now: a change that launches more fails here and has to say why; one that launches
less lowers the number.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from aerie.contracts.config import load_config
from aerie.contracts.sampling import SamplingParams
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.model.layer import gated, rotated
from aerie.engine.model.norm import normed
from aerie.engine.model.projection import Projection
from aerie.engine.sampling.choose import choose, filtered
from aerie.engine.sampling.ending import cut
from aerie.engine.sampling.noise import gumbel
from aerie.spec.build import build_worker
from aerie.spec.trees.accept import accept
from aerie.spec.trees.tree import select
from tests.engine.fake_gpu import GPU, FakeTransfer, fake_gpu
from tests.engine.rounds import Rounds
from tests.house import HOME

VOCABULARY, DRAFTED = 1000, 600
KINDS = {
    "greedy": SamplingParams(temperature=0, max_tokens=40),
    "sampled": SamplingParams(temperature=0.8, seed=2, max_tokens=40),
    "filtered": SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=2, max_tokens=40),
    "edited": SamplingParams(temperature=0.8, top_k=20, presence_penalty=0.5, logit_bias={3: 1.0}, max_tokens=40),
}
CHAIN = {"depth": 3, "topk": 1, "nodes": 4}


_FREE = {"aten::detach", "aten::lift_fresh", "aten::empty", "aten::empty_like", "aten::empty_strided", "prim::device"}


class Launches(TorchDispatchMode):
    """Counts launches, and of them those that read or write a row of the vocabulary, the target's or the head's."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.wide: Counter[str] = Counter()
        self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.paused and not _is_view(func, args, result) and func._schema.name not in _FREE:
            self.count(func._schema.name, (args, kwargs), result)
        return result

    def count(self, name: str, *values: Any) -> None:
        tensors = [value for value in tree_flatten(values)[0] if isinstance(value, Tensor)]
        if not any(tensor.device.type == "cuda" for tensor in tensors):
            return
        self.names[name] += 1
        if any(tensor.ndim > 1 and tensor.shape[-1] in (VOCABULARY, DRAFTED) for tensor in tensors):
            self.wide[name] += 1

    def one_launch(self, reference: Callable[..., Any]) -> Callable[..., Any]:
        """A kernel in place of `reference`."""

        def kernel(*given: Any, **named: Any) -> Any:
            before, self.paused = self.paused, True
            result = reference(*given, **named)
            self.paused = before
            if not before:
                self.count(reference.__name__, given, named, result)
            return result

        return kernel


def _is_view(func: Any, args: Any, result: Any) -> bool:
    """Operators such as `to` and `reshape` are views by their schema, and copy where they must."""
    if not func.is_view or not isinstance(result, Tensor):
        return bool(func.is_view)
    return result.untyped_storage()._cdata == args[0].untyped_storage()._cdata


class Step:
    """What one decode step of a row did."""

    def __init__(self, launches: Launches, copies: Counter[str]) -> None:
        self.launches = launches.names.total()
        self.wide = launches.wide.total()
        self.names, self.wide_names = launches.names, launches.wide
        self.copies = copies["in"], copies["out"]


@contextmanager
def counted_copies() -> Iterator[Counter[str]]:
    """Copies to the device and back, without those of attention's plans."""
    copies: Counter[str] = Counter()
    together = [False]
    put, fetch = FakeTransfer.put, FakeTransfer.fetch

    @contextmanager
    def one(_: FakeTransfer) -> Iterator[None]:
        copies["in"] += 1
        together[0] = True
        yield
        together[0] = False

    def putting(self: FakeTransfer, *given: Any) -> Tensor:
        copies["in"] += not together[0]
        return put(self, *given)

    def fetching(self: FakeTransfer, words: Tensor) -> Any:
        copies["out"] += 1
        return fetch(self, words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeTransfer, "together", one)
        patch.setattr(FakeTransfer, "put", putting)
        patch.setattr(FakeTransfer, "fetch", fetching)
        yield copies


@pytest.fixture
def step_of(tmp_path: Path) -> Callable[..., Step]:
    """Counts a decode step of one row, launched call by call: a recording holds the same launches. With `graphs`, what
    is launched beside the recordings.
    """

    def folder(layers: int) -> Path:
        home = tmp_path / str(layers)
        changes = {
            "target": {"num_hidden_layers": layers, "vocab_size": VOCABULARY},
            "head": {"eagle_aux_hidden_state_layer_ids": [0, 1], "vocab_size": VOCABULARY, "draft_vocab_size": DRAFTED},
        }
        for part, changed in changes.items():
            (home / part).mkdir(parents=True, exist_ok=True)
            whole = json.loads((HOME / f"configs/shape/tiny/{part}/config.json").read_text())
            (home / part / "config.json").write_text(json.dumps(whole | changed))
        return home

    def run(
        kind: str,
        *,
        layers: int = 2,
        triton: bool = False,
        shape: dict[str, int] | None = None,
        graphs: bool = False,
    ) -> Step:
        home, launches = folder(layers), Launches()
        replaced = (choose, filtered, gumbel, cut, normed, rotated, gated, select, accept) if triton else ()
        kernels = Kernels("triton", {each: launches.one_launch(each) for each in replaced}) if triton else REFERENCES
        config = load_config(
            HOME / "configs/serve/tiny-dummy.yaml",
            [
                f"model.path={home}/target",
                f"spec.head={home / 'head' if shape else 'none'}",
                *("engine.device=cuda", f"engine.graphs={str(graphs).lower()}", "scheduler.max_running=1"),
                "model.dtype=bfloat16",
                *(f"spec.{name}={value}" for name, value in (shape or {}).items()),
            ],
        )
        with fake_gpu(), counted_copies() as copies:
            rounds = Rounds(build_worker(config, kernels))
            row = rounds.add(0, [5, 6, 7], KINDS[kind], drafting=bool(shape))
            for counted in (copies, launches.names, launches.wide):
                counted.clear()
            with launches:
                rounds.decode([row], **(shape or {}))
        return Step(launches, copies)

    return run


TREE = {"depth": 3, "topk": 2, "nodes": 6}


@pytest.mark.parametrize(("triton", "most"), [(False, 22), (True, 8)])
def test_launches_of_a_layer(step_of: Callable[..., Step], triton: bool, most: int) -> None:
    """Attention's own come on top."""
    two, three = (step_of("greedy", layers=layers, triton=triton) for layers in (2, 3))
    assert three.launches - two.launches <= most, three.names - two.names
    assert two.copies == (1, 1), "a plan goes in together, and an answer comes out together"


@pytest.mark.parametrize(
    ("shape", "kind", "launches", "wide"),
    [
        (None, "greedy", 58, 2),
        (None, "sampled", 58, 2),
        (None, "filtered", 58, 2),
        (CHAIN, "greedy", 148, 8),
        (CHAIN, "sampled", 169, 19),
        (TREE, "filtered", 260, 28),
        (None, "edited", 65, 2),
        (CHAIN, "edited", 191, 25),
    ],
)
def test_launches_of_a_step(
    step_of: Callable[..., Step], shape: dict[str, int] | None, kind: str, launches: int, wide: int
) -> None:
    """With Triton's kernels: two layers of the target, and the head's one at each level. Edits are part of `choose`."""
    step = step_of(kind, triton=True, shape=shape)
    assert step.launches <= launches, step.names
    assert step.wide <= wide, f"passes over the vocabulary: {step.wide_names}"
    assert step.copies == (1, 1)


@pytest.mark.parametrize("shape", [None, CHAIN, TREE])
def test_launches_beside_the_recordings(step_of: Callable[..., Step], shape: dict[str, int] | None) -> None:
    """The page list, made and put where all passes of the step read it."""
    step = step_of("greedy", shape=shape, graphs=True)
    assert step.launches <= 2, step.names
    assert step.copies == (1, 1)


def test_logits_are_a_product_that_nothing_rounds() -> None:
    """Its sums stay in fp32: 16 bits have ties among likely tokens, and widening them is a pass over the vocabulary."""
    launches = Launches()
    with fake_gpu():
        weight, x = (torch.empty(rows, 64, dtype=torch.bfloat16, device=GPU) for rows in (VOCABULARY, 3))
        output = Projection(weight)
        with launches:
            logits = output.wide(x, lambda normed: normed)
    assert logits.shape == (3, VOCABULARY) and logits.dtype is torch.float32
    assert dict(launches.names) == {"aten::mm": 1}


def test_a_launch_more_is_counted(step_of: Callable[..., Step], monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Projection.__call__
    before = step_of("greedy")
    monkeypatch.setattr(Projection, "__call__", lambda self, x, norm=None: honest(self, x.clone(), norm))
    after = step_of("greedy")
    assert after.launches == before.launches + 2 * 2, "qkv and gate_up of both layers"
