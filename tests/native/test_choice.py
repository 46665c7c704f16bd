"""What multiplies by the weights: chosen by trials, kept for later starts, equal to the last bit for any count."""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from aerie.contracts.config import parse_config
from aerie.native import choice
from aerie.native.choice import choose
from aerie.native.library import library
from aerie.native.products import Multiplier, pack
from aerie.native.trials import FP16, PANELS, PanelTrial, Way, least_seconds, steady
from aerie.native.worker import NativeWorker
from aerie.worker import build_worker
from tests.house import HOME
from tests.native.cpp_here import needs_cpp

pytestmark = needs_cpp

SHAPES, LAYERS = [(1024, 256), (256, 512)], 4
OWN = {PANELS: Multiplier.FP32}
Times = dict[tuple[str, int], float]
"""Seconds at any number of tokens, by product and threads; one second where there is none."""


@pytest.fixture(autouse=True)
def kept_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("AERIE_KERNELS", str(tmp_path))
    return tmp_path / "choices"


@pytest.fixture(autouse=True)
def as_before() -> object:
    threads = torch.get_num_threads()
    yield
    Way(PANELS, threads).use()
    library().use_threads(1)


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Callable[[Times], list[int]]:
    """Trials with given outcomes, of torch's form too, which some CPUs lack; returns a list that grows with each."""

    def outcomes(times: Times) -> list[int]:
        counted: list[int] = []

        def measured(ways: Mapping[Way, object], counts: Sequence[int], **_: object) -> dict[Way, dict[int, float]]:
            counted.append(len(ways))
            return {way: dict.fromkeys(counts, times.get((way.product, way.threads), 1.0)) for way in ways}

        monkeypatch.setattr(choice, "packed_trial", PanelTrial)
        monkeypatch.setattr(choice, "least_seconds", measured)
        return counted

    return outcomes


def test_the_fastest_serves_and_torch_s_only_if_much_faster(trials: Callable[[Times], list[int]]) -> None:
    trials({(PANELS, 2): 0.6, (PANELS, 4): 0.5, (PANELS, 5): 0.8, (FP16, 1): 0.45})
    assert choose(SHAPES, LAYERS, threads=5).way == Way(PANELS, 4)
    trials({(PANELS, 1): 0.5, (FP16, 1): 0.3})
    assert choose(SHAPES, LAYERS, threads=4).way == Way(FP16, 1)
    trials({(PANELS, 1): 0.505, (PANELS, 2): 0.5})
    assert choose(SHAPES, LAYERS, threads=3).way.threads == 1, "a thread that gains nothing stays free"


def test_threads_go_no_higher_than_allowed() -> None:
    assert {way.threads for way in choice._ways(5, pinned=False, own=OWN, product=None)} == {1, 2, 4, 5}
    assert {way.threads for way in choice._ways(1, pinned=False, own=OWN, product=None)} == {1}
    assert {way.threads for way in choice._ways(3, pinned=True, own=OWN, product=PANELS)} == {3}


def test_a_choice_is_kept_for_this_cpu_this_library_and_this_model(
    trials: Callable[[Times], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = trials({(PANELS, 2): 0.5})
    first = choose(SHAPES, LAYERS, threads=2)
    assert choose(SHAPES, LAYERS, threads=2) == first and len(measured) == 1
    choose([(2048, 256)], LAYERS, threads=2)
    choose(SHAPES, LAYERS, threads=3)
    monkeypatch.setattr(choice, "cpu_name", lambda: "another")
    choose(SHAPES, LAYERS, threads=2)
    monkeypatch.setattr(choice, "library_name", lambda: "another")
    choose(SHAPES, LAYERS, threads=2)
    assert len(measured) == 5


@pytest.mark.parametrize("text", ["", "{", "[]", '{"way": {"product": "panels"}}', "no way of this machine"])
def test_a_kept_choice_that_cannot_be_used_is_measured_again(
    trials: Callable[[Times], list[int]], kept_here: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    measured = trials({(PANELS, 2): 0.5})
    first = choose(SHAPES, LAYERS, threads=2)
    (file,) = kept_here.iterdir()
    other = file.read_text().replace('"threads": 2', '"threads": 64')
    file.write_text(other if text.startswith("no way") else text)
    assert choose(SHAPES, LAYERS, threads=2) == first and len(measured) == 2
    assert "cannot be used" in caplog.text and "measured again" in caplog.text
    caplog.clear()
    assert choose(SHAPES, LAYERS, threads=2) == first and len(measured) == 2 and not caplog.text


def test_a_folder_that_cannot_be_written_costs_a_warning_only(
    trials: Callable[[Times], list[int]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trials({(PANELS, 2): 0.5})
    (tmp_path / "file").touch()
    monkeypatch.setenv("AERIE_KERNELS", str(tmp_path / "file" / "below"))
    assert choose(SHAPES, LAYERS, threads=2).way.threads == 2
    assert "cannot be kept" in caplog.text and "AERIE_KERNELS" in caplog.text


def test_what_is_pinned_is_not_measured(trials: Callable[[Times], list[int]]) -> None:
    measured = trials({})
    assert choose(SHAPES, LAYERS, threads=3, pinned=True, product=FP16).way.product == FP16
    assert choose([(64, 64)], 2, threads=3).way.product == PANELS, "nor is a small model"
    assert choose([(64, 64)], 2, threads=3, pinned=True, product=PANELS).way.threads == 3
    assert not measured
    assert choose(SHAPES, LAYERS, threads=3, pinned=True, product=PANELS).way.threads == 3
    assert len(measured) == 1, "how far ahead it reads changes no text, so it is"


@pytest.mark.parametrize("far_takes", [{1: 0.95, 4: 1.0}, {1: 1.02, 4: 0.9}])
def test_the_faster_of_both_reaches_serves(monkeypatch: pytest.MonkeyPatch, far_takes: dict[int, float]) -> None:
    """However little that is, while another product must be clearly faster."""

    def measured(ways: Mapping[Way, object], counts: Sequence[int], **_: object) -> dict[Way, dict[int, float]]:
        return {way: {count: far_takes.get(count, 1.0) if way.far else 1.0 for count in counts} for way in ways}

    monkeypatch.setattr(choice, "least_seconds", measured)
    assert choose(SHAPES, LAYERS, threads=1).way == Way(PANELS, 1, far=True)
    far_takes[16] = 1.2
    assert choose(SHAPES, LAYERS + 1, threads=1).way == Way(PANELS, 1)


def test_trials_end_in_time() -> None:
    """By their own clock, which a round moves by a second: two rounds always, and none begins after the end."""
    now, runs = [0.0], []

    class Slow:
        def prepare(self, tokens: int) -> Callable[[], None]:
            def run() -> None:
                now[0] += 0.5
                runs.append(tokens)

            return run

    way = Way(PANELS, 1)
    least = least_seconds({way: Slow()}, (1, 4), seconds=0.1, clock=lambda: now[0])  # type: ignore[dict-item]
    assert runs == [1, 1, 4] * 2 and least == {way: {1: 0.5, 4: 0.5}}
    runs.clear()
    least_seconds({way: Slow()}, (1, 4), seconds=5.5, clock=lambda: now[0])  # type: ignore[dict-item]
    assert runs == [1, 1, 4] * 4, "of each round, the first run is not timed"


@pytest.mark.parametrize(("threads", "clock"), [(1, time.thread_time), (2, time.perf_counter)])
def test_what_else_runs_does_not_decide(
    threads: int, clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = []

    def measured(ways: Mapping[Way, object], counts: Sequence[int], **given: object) -> dict[Way, dict[int, float]]:
        clocks.append(given["clock"])
        return {way: dict.fromkeys(counts, 1.0) for way in ways}

    monkeypatch.setattr(choice, "least_seconds", measured)
    choose(SHAPES, LAYERS, threads=threads)
    assert clocks == [clock]


def test_real_trials_choose(kept_here: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    chosen = choose(SHAPES, LAYERS, threads=2)
    assert (
        chosen.way in choice._ways(2, pinned=False, own=OWN, product=None)
        and "measured at 1, 4, 16 and 64" in chosen.why
    )
    assert "products were measured" in caplog.text and len(list(kept_here.iterdir())) == 1


def test_how_far_ahead_it_reads_changes_no_bit() -> None:
    panels = pack(torch.randn(200, 300).bfloat16().float())
    assert panels is not None and steady(panels, 300)
    x = torch.randn(70, 300)
    expected = panels(x, None)
    for far in (True, False):
        library().read_far_ahead(far)
        assert torch.equal(panels(x, None), expected) and steady(panels, 300)


def test_a_product_that_depends_on_the_number_of_tokens_is_found_out() -> None:
    weight = torch.randn(64, 512)

    class Wavering:
        def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
            half = 256 if x.shape[0] > 4 else 512
            return x[:, :half] @ weight[:, :half].t() + x[:, half:] @ weight[:, half:].t()

    assert not steady(Wavering(), 512)  # type: ignore[arg-type]


def test_a_trial_multiplies_by_every_matrix() -> None:
    weights = [torch.full((40, 24), 0.5), torch.full((24, 40), 2.0)]
    trial = PanelTrial(weights)
    trial.prepare(3)()
    assert [(matrix.outputs, matrix.inputs) for matrix in trial._matrices] == [(40, 24), (24, 40)]


@pytest.mark.parametrize("product", [PANELS, FP16])
def test_a_worker_reports_and_runs_what_is_pinned(product: str) -> None:
    engine = {"kv_tokens": 256, "products": product, "threads": 1}
    model = {"path": str(HOME / "models/demo/target"), "max_length": 64}
    worker = build_worker(parse_config({"engine": engine, "model": model, "spec": {"head": "none"}}))
    assert worker.capacity.report["products"] == product
    assert str(worker.capacity.report["products_chosen"]).startswith("set by the configuration")
    assert isinstance(worker, NativeWorker) == (product == PANELS)


def test_products_go_on_when_cores_are_lost() -> None:
    panels, x = pack(torch.randn(1024, 256).bfloat16().float()), torch.randn(16, 256)
    assert panels is not None
    expected, cores = panels(x, None), os.sched_getaffinity(0)
    library().use_threads(4)
    try:
        for allowed in ({min(cores)}, {max(cores)}, cores):
            for thread in os.listdir("/proc/self/task"):
                os.sched_setaffinity(int(thread), allowed)
            assert all(torch.equal(panels(x, None), expected) for _ in range(20))
    finally:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), cores)
