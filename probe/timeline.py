"""Timelines of traced steps: a picture, and a file for Perfetto and chrome://tracing."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.contracts.step import StepKind
from aerie.probe.lane_log import StepTimes

Windows = Mapping[str, Sequence[StepTimes]]

_COLORS = {
    "plan and launch": "#d9822b",
    "wait": "#e6e6e6",
    "prefill": "#7b5ea7",
    "draft": "#8fc1a9",
    "verify": "#2f6f9f",
    "accept": "#c8553d",
    "extend": "#5b9bd5",
    "other": "#9aa5b1",
}


@dataclass(frozen=True, slots=True)
class Span:
    """`track` is host or lane; times are seconds of the window's clock."""

    track: str
    name: str
    began: float
    ended: float
    step: StepTimes


def spans(window: Sequence[StepTimes]) -> Iterator[Span]:
    """The host's work and waits, and the lane's phases, which follow one another within a step."""
    for step in window:
        yield Span("host", "plan and launch", step.planning, step.launched, step)
        yield Span("host", "wait", step.waiting, step.settled, step)
        at = step.began
        for phase, seconds in step.phases.items():
            yield Span("lane", phase, at, min(at + seconds, step.ended), step)
            at += seconds
        if step.ended > at:
            yield Span("lane", "other", at, step.ended, step)


def _start(window: Sequence[StepTimes]) -> float:
    """The lane may have been busy with earlier work when the host began to plan."""
    return min(min(step.planning, step.began) for step in window)


def write_trace(path: Path, windows: Windows) -> None:
    """Writes Chrome trace events: a process per loop, a thread each for host and lane, microseconds from the start."""
    events: list[dict[str, Any]] = []
    for process, (loop, window) in enumerate(windows.items(), start=1):
        start = _start(window)
        tracks = {"host": 1, "lane": 2}
        events.append(_name("process_name", process, 0, loop))
        events += [_name("thread_name", process, thread, track) for track, thread in tracks.items()]
        events += [
            {
                "ph": "X",
                "pid": process,
                "tid": tracks[span.track],
                "name": span.name,
                "cat": StepKind(span.step.kind).name.lower(),
                "ts": round(1e6 * (span.began - start), 3),
                "dur": round(1e6 * (span.ended - span.began), 3),
                "args": {"step": span.step.number, "rows": span.step.rows, "committed": span.step.committed},
            }
            for span in spans(window)
        ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")


def draw(path: Path, windows: Windows, *, title: str) -> None:
    """Writes a PNG with one panel per loop, all on one scale of milliseconds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(14, 2.1 * len(windows) + 1), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11)
    panels = figure.subplots(len(windows), 1, sharex=True, squeeze=False)[:, 0]
    shown: set[str] = set()
    for panel, (loop, window) in zip(panels, windows.items(), strict=True):
        start = _start(window)
        for span in spans(window):
            shown.add(span.name)
            bar = (1e3 * (span.began - start), 1e3 * (span.ended - span.began))
            panel.broken_barh([bar], (1.1 if span.track == "host" else 0.1, 0.8), color=_COLORS.get(span.name, "gray"))
        panel.set_yticks([0.5, 1.5], ["lane", "host"])
        panel.set_ylim(0, 2)
        panel.set_title(loop, loc="left", fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("milliseconds")
    legend = [Patch(color=color, label=name) for name, color in _COLORS.items() if name in shown]
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": {"name": name}}
