"""A trace is a picture and a file of events that do not overlap on their tracks."""

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from aerie.contracts.config import Config
from aerie.contracts.errors import AerieError
from aerie.contracts.step import StepOutput
from aerie.probe.lane_log import LaneLog
from aerie.probe.timeline import draw, write_trace
from aerie.probe.trace import trace, trace_cells
from tests.probe.conftest import PROMPTS, make_lane


def test_both_files_are_written(config: Config, tmp_path: Path) -> None:
    windows = trace(config, PROMPTS, make_lane, steps=6)
    assert {loop: len(window) for loop, window in windows.items()} == {"overlapped": 6, "synchronous": 6}
    draw(tmp_path / "deep" / "trace.png", windows, title="six steps")
    assert (tmp_path / "deep" / "trace.png").read_bytes().startswith(b"\x89PNG")
    write_trace(tmp_path / "trace.json", windows)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    named = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M"}
    assert sorted(named.values()) == sorted(["overlapped", "synchronous", "host", "lane", "host", "lane"])
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
            assert event["dur"] >= 0 and event["ts"] >= 0
    assert len(tracks) == 4
    for bars in tracks.values():
        ordered = sorted(bars)
        assert all(at + long <= later + 1 for (at, long), (later, _) in pairwise(ordered))
    for cell in trace_cells(windows):
        assert cell["lane_ms"] > 0 and cell["host_ms"] > 0 and 0 <= cell["idle_share"] < 1


def test_a_lane_that_keeps_no_time_is_named(config: Config) -> None:
    class Timeless(LaneLog):
        def settle(self) -> StepOutput:
            return replace(super().settle(), began=0.0, ended=0.0)

    with pytest.raises(AerieError, match="does not say when its steps began"):
        trace(config, PROMPTS, lambda config: Timeless(make_lane(config)), steps=4)
