"""The GPU's lane on stand-ins: page-locked copies in turn, one copy each way, clocks that lose nothing, errors."""

from typing import Any

import numpy as np
import pytest
import torch

from aerie.contracts.config import Config
from aerie.contracts.errors import EngineDead
from aerie.contracts.step import StepOutput
from aerie.engine.lanes.cuda import CudaLane
from aerie.engine.state.pinned import PinnedTransfer
from aerie.engine.step.clock import EventClock
from tests.engine.echo import EchoWorker
from tests.engine.lanes.test_lanes import plan
from tests.engine.stand_in import StandIn, StandInEvent


class Watched(StandIn):
    """Notes when the device is asked to have passed an event."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def event(self) -> StandInEvent:
        event = super().event()

        def synchronize() -> None:
            self.waits += 1

        event.synchronize = synchronize  # type: ignore[method-assign]
        return event


def test_what_is_put_together_is_one_copy_and_keeps_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    transfer = PinnedTransfer(StandIn(), 1 << 12)
    copies: list[tuple[int, int]] = []
    send = PinnedTransfer._send
    monkeypatch.setattr(PinnedTransfer, "_send", lambda self, *ends: (copies.append(ends), send(self, *ends))[1])
    transfer.begin()
    with transfer.together():
        rows = transfer.put(np.array([3, 1], np.int32))
        heat = transfer.put(np.array([0.5, 0.0]), np.float32)
        real = transfer.put(np.array([[True], [False]]), np.bool_)
        assert rows.tolist() == [0, 0], "nothing has been sent yet"
    assert len(copies) == 1
    assert (rows.tolist(), heat.tolist(), real.tolist()) == ([3, 1], [0.5, 0.0], [[True], [False]])
    assert (rows.dtype, heat.dtype, real.dtype) == (torch.int64, torch.float32, torch.bool)
    alone = transfer.put(np.arange(3))
    assert len(copies) == 2 and alone.tolist() == [0, 1, 2] and rows.tolist() == [3, 1]
    assert all(part.data_ptr() % 16 == 0 for part in (rows, heat, real, alone))


def test_what_comes_first_lies_at_one_address_in_every_step() -> None:
    transfer = PinnedTransfer(StandIn(), 1 << 12)
    places = []
    for step in range(3):
        transfer.begin()
        places.append(transfer.put(np.full(5, step)).data_ptr())
    assert len(set(places)) == 1


def test_a_copy_is_written_again_only_once_the_device_has_read_it() -> None:
    runtime = Watched()
    transfer = PinnedTransfer(runtime, 1 << 12)
    locked = []
    for _ in range(3):
        transfer.begin()
        locked.append(transfer._slots[transfer._current].going_in.data_ptr())
    assert locked[0] == locked[2] != locked[1]
    assert runtime.waits == 3


def test_more_than_fits_finds_its_own_place() -> None:
    transfer = PinnedTransfer(StandIn(), 64)
    transfer.begin()
    with transfer.together():
        small, large = transfer.put(np.array([7])), transfer.put(np.arange(1000))
    assert small.tolist() == [7] and large.tolist() == list(range(1000))
    words = torch.arange(500, dtype=torch.int32)
    assert transfer.fetch(words)().tolist() == words.tolist()


def test_results_of_a_step_outlive_the_next_ones() -> None:
    transfer = PinnedTransfer(StandIn(), 1 << 12)
    read = []
    for step in range(2):
        transfer.begin()
        read.append(transfer.fetch(torch.full((4,), step, dtype=torch.int32)))
    first = read[0]()
    transfer.begin()
    transfer.fetch(torch.full((4,), 9, dtype=torch.int32))
    assert first.tolist() == [0] * 4 and read[1]().tolist() == [1] * 4


class LateEvent(StandInEvent):
    """Passed when the test says so; a device's time is a counter."""

    now = 0.0
    open = False

    def record(self) -> None:
        LateEvent.now += 1.0
        self.at = LateEvent.now / 1e3
        self.late = LateEvent.open

    def query(self) -> bool:
        return not self.late


def test_the_last_phase_is_told_with_the_step_after(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = StandIn()
    monkeypatch.setattr(runtime, "event", LateEvent)
    clock = EventClock(runtime)
    reported = []
    for _ in range(3):
        read = clock.start()
        clock.begin()
        with clock.phase("verify"):
            pass
        LateEvent.open = True
        with clock.phase("extend"):
            pass
        clock.stop()
        LateEvent.open = False
        times = read()
        reported.append(times)
        clock._late[0].until.late = False  # by the next step's results it has run
    assert [sorted(times.phases) for times in reported] == [["verify"], ["extend", "verify"], ["extend", "verify"]]
    assert all(times.busy == pytest.approx(sum(times.phases.values())) for times in reported)
    assert reported[0].began < reported[0].ended <= reported[1].began < reported[1].ended


def test_results_may_be_read_before_their_phase_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy of the results is within the phase: the host may be quicker than the event after it."""
    runtime = StandIn()
    monkeypatch.setattr(runtime, "event", LateEvent)
    clock = EventClock(runtime)
    read = clock.start()
    clock.begin()
    LateEvent.open = True
    with clock.phase("verify"):
        pass
    LateEvent.open = False
    first = read()
    clock._late[0].until.late = False  # type: ignore[attr-defined]
    read = clock.start()
    clock.begin()
    with clock.phase("verify"):
        pass
    assert first.phases == {} and first.busy == 0 and first.began == first.ended
    assert set(read().phases) == {"verify"}


def test_the_host_s_work_before_the_first_copy_is_not_busy_time(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = StandIn()
    monkeypatch.setattr(runtime, "event", LateEvent)
    clock = EventClock(runtime)
    transfer = PinnedTransfer(runtime, 1 << 12, before=clock.begin)
    transfer.begin()
    read = clock.start()
    with clock.phase("verify"):
        LateEvent.now += 1000  # the host prepares the step for a second
        with transfer.together():
            transfer.put(np.arange(3))
        transfer.put(np.arange(3))
    clock.stop()
    times = read()
    assert times.busy < 0.1 and times.phases["verify"] == pytest.approx(times.ended - times.began)


class TritonLike(Exception):
    """Triton's errors derive from Exception alone."""


class Failing(EchoWorker):
    """A worker whose device fails, at the launch or afterwards."""

    def __init__(self, error: Exception, *, at_launch: bool) -> None:
        super().__init__(Config())
        self._error = error
        self._at_launch = at_launch
        self.runtime = StandIn()

    def launch(self, _: Any) -> Any:
        if self._at_launch:
            raise self._error
        return self

    def proceed(self) -> None: ...

    def output(self) -> StepOutput:
        raise self._error


@pytest.mark.parametrize("at_launch", [True, False])
@pytest.mark.parametrize("kind", [torch.AcceleratorError, RuntimeError, TritonLike, AssertionError, ValueError])
def test_an_error_of_the_device_ends_the_lane(at_launch: bool, kind: type[Exception]) -> None:
    error = kind("CUDA error: an illegal memory access\nCompile with TORCH_USE_CUDA_DSA")
    lane = CudaLane(Failing(error, at_launch=at_launch))
    with pytest.raises(EngineDead, match=r"requests are lost: CUDA error: an illegal memory access$"):
        lane.launch(plan(1))
        lane.settle()
    lane.close()


def test_no_memory_says_what_gives_it_back() -> None:
    lane = CudaLane(Failing(torch.OutOfMemoryError("CUDA out of memory"), at_launch=True))
    with pytest.raises(EngineDead, match=r"out of memory in a step.*lower engine\.memory_share"):
        lane.launch(plan(1))


def test_no_third_step_is_launched() -> None:
    lane = CudaLane(Failing(ValueError(), at_launch=False))
    lane.launch(plan(1))
    lane.launch(plan(2))
    with pytest.raises(AssertionError, match="two steps are in flight"):
        lane.launch(plan(3))
