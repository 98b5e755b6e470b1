"""What happened to each request, drawn from the engine's event trace: waiting, prefill, decode, preempted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from course_lib.engine.metrics import Event, Metrics
from course_lib.plots.style import DECODE, MUTED, PREFILL, new_stack, styled

Unit = Literal["steps", "seconds"]
Key = tuple[str, int]  # request id, index among its n completions
MOST_NAMES = 40  # rows of one panel that still have room for a name

LOOKS = {
    "waiting": {"fc": "#DCDCDC", "ec": "none"},
    "prefill": {"fc": PREFILL, "ec": "none"},
    "decode": {"fc": DECODE, "ec": "none"},
    "preempted": {"fc": "white", "ec": MUTED, "hatch": "/////", "lw": 0.6},
}


@dataclass(frozen=True)
class Span:
    """A request was in one state from `start` to `end`, in steps or in seconds after the first event.

    state: a key of LOOKS. waiting: known to the engine and not fed, with or without blocks. prefill: fed tokens of the
    prompt, or, after a preemption by recompute, of prompt and output once more. preempted: its blocks were taken.
    """

    state: str
    start: float
    end: float


Table = Mapping[Key, Sequence[Span]]


def spans(metrics: Metrics, unit: Unit = "steps") -> dict[Key, list[Span]]:
    """The states of each completion from its arrival to its end, without gaps, in order of arrival.

    Of one that has not ended: up to the last step. In seconds a step lasts until the next one starts.
    """
    by_request: dict[Key, list[Event]] = defaultdict(list)
    for event in metrics.events:
        by_request[event.request_id, event.index].append(event)
    origin = metrics.events[0].time if metrics.events else 0.0
    starts = {record.step: record.time for record in metrics.steps}
    result = {}
    for key, events in by_request.items():
        arrival = events[0]
        end, end_time = _end(events[-1], metrics)
        states = _states(events, arrival.step, end)
        edges: list[float] = list(range(arrival.step, end + 1))
        if unit == "seconds":  # it arrives before its first step starts
            states, edges = ["waiting", *states], [arrival.time, *(starts[step] for step in edges[:-1]), end_time]
            edges = [time - origin for time in edges]
        result[key] = _merged(states, edges)
    return result


def _end(last: Event, metrics: Metrics) -> tuple[int, float]:
    """The step before which a completion's states end, and the time; `last` is its latest event."""
    if last.kind == "finished":
        return last.step + 1, last.time
    if last.kind == "aborted" or not metrics.steps or metrics.steps[-1].step < last.step:
        return last.step, last.time  # between two steps, of which the event names the later one
    record = metrics.steps[-1]
    return record.step + 1, record.time + record.scheduling_s + record.forward_s + record.sampling_s


def _states(events: Sequence[Event], first: int, end: int) -> list[str]:
    """The state in each of the steps first .. end - 1."""
    steps = defaultdict(set)
    for event in events:
        steps[event.kind].add(event.step)
    states, generated, evicted, recompute = [], False, False, False
    for step in range(first, end):
        if step in steps["preempted"] or step in steps["swapped_out"]:
            evicted, recompute = True, recompute or step in steps["preempted"]
        if step in steps["scheduled"]:
            evicted = False
            states.append("decode" if generated and not recompute else "prefill")
        else:
            states.append("preempted" if evicted else "waiting")
        if step in steps["token"]:
            generated, recompute = True, False
    return states


def _merged(states: Sequence[str], edges: Sequence[float]) -> list[Span]:
    merged: list[Span] = []
    for state, (start, end) in zip(states, pairwise(edges), strict=True):
        if merged and merged[-1].state == state:
            merged[-1] = replace(merged[-1], end=end)
        else:
            merged.append(Span(state, start, end))
    return merged


@styled
def timeline(
    runs: Mapping[str, Metrics], unit: Unit = "steps", names: Mapping[str, str] | None = None, width: float = 11
) -> Figure:
    """One panel for each run, titled with its key, on one time axis; in it one row for each completion.

    names: what stands before a row, by request id; default the id. width: of the figure, in inches.
    """
    tables = {title: spans(metrics, unit) for title, metrics in runs.items()}
    end = max((span.end for table in tables.values() for row in table.values() for span in row), default=1)
    rows = sum(map(len, tables.values()))
    height = 1.0 * len(tables) + min(0.24 * rows, 7) + 0.5
    figure, panels = new_stack(width, height, [len(table) + 1 for table in tables.values()])
    for axes, (title, table) in zip(panels, tables.items(), strict=True):
        draw_timeline(axes, table, names)
        axes.set_title(title)
        axes.set_xlim(0, end)
    draw_legend(panels[0], *tables.values())
    panels[-1].set_xlabel(unit)
    return figure


def draw_timeline(axes: Axes, table: Table, names: Mapping[str, str] | None = None) -> None:
    """The rows of `spans` as bars, the first on top; names as in `timeline`."""
    for y, row in enumerate(table.values()):
        for state, look in LOOKS.items():
            bars = [(span.start, span.end - span.start) for span in row if span.state == state]
            axes.broken_barh(bars, (y - 0.4, 0.8), **look)
    names = names or {}
    ticks = [names.get(group, group) + (f".{index}" if index else "") for group, index in table]
    few = len(ticks) <= MOST_NAMES
    axes.set_yticks(range(len(ticks)) if few else [], ticks if few else [], fontsize=10)
    axes.set_ylim(len(ticks) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def draw_legend(axes: Axes, *tables: Table) -> None:
    """The states that occur in the tables, in one line above the right end of the axes."""
    states = {span.state for table in tables for row in table.values() for span in row}
    handles = [Patch(label=state, **look) for state, look in LOOKS.items() if state in states]
    place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.2}
    axes.legend(handles=handles, ncols=len(handles), frameon=False, fontsize=10.5, handlelength=1.2, **place)
