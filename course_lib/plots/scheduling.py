"""Figures of notebook 10: who waits how long under which order, what users get as the load rises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from course_lib.engine.metrics import StepRecord
from course_lib.perf.service import Sample, percentiles
from course_lib.plots.style import INK, MUTED, label, new_figure, new_stack, styled

# Policies are told apart by line and label: the colours of the course stand for prefill, decode, weights and KV.
LINES = (
    {"color": MUTED, "ls": "-", "marker": "o", "mfc": "white"},
    {"color": INK, "ls": "--", "marker": "s", "mfc": "white"},
    {"color": INK, "ls": "-", "marker": "o"},
    {"color": MUTED, "ls": ":", "marker": "D"},
)
LATE = "#D8D8D8"


@styled
def waits(lengths: Sequence[int], found: Mapping[str, Sequence[float]]) -> Figure:
    """Steps that one request waited, by how long the stream of better ones lasted; both axes logarithmic."""
    figure, [axes] = new_figure(9, 4.4)
    for look, (name, values) in zip(LINES, found.items(), strict=False):
        axes.plot(lengths, values, **look)
        label(axes, lengths[-1], values[-1], name, look["color"], dx=10, weight="bold")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set_yticks([10, 100, 1000], ["10", "100", "1,000"])
    axes.minorticks_off()
    axes.set_xlim(right=lengths[-1] * 2.2)
    axes.set_xlabel("steps during which requests of level 0 keep coming")
    axes.set_ylabel("steps until the first token")
    axes.set_title("The wait of one request of level 2")
    return figure


@styled
def spread(latencies: Mapping[str, Sequence[float]], what: str, title: str) -> Figure:
    """Every request as a dot, one row per run; its mean, median, p95 and p99 are marked. what: names the x axis."""
    figure, [axes] = new_figure(10.5, 1.1 + 1.15 * len(latencies))
    for y, values in enumerate(latencies.values()):
        draw_spread(axes, y, values)
    axes.set_yticks(range(len(latencies)), list(latencies))
    axes.set_ylim(len(latencies) - 0.35, -0.65)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(left=0)
    axes.set_xlabel(what)
    axes.set_title(title)
    return figure


def draw_spread(axes: Axes, y: float, values: Sequence[float]) -> None:
    """One row of `spread`. Dots are shifted up and down so that equal ones can be counted."""
    jitter = 0.16 * np.sin(np.arange(len(values)) * 2.4)
    axes.plot(values, y + jitter, "o", color=MUTED, ms=3.2, alpha=0.35, mew=0)
    for q, at in percentiles(values).items():
        axes.plot([at, at], [y - 0.24, y + 0.24], color=INK, lw=2)
        label(axes, at, y - 0.36, f"p{q} {at:,.3g}", dx=0, ha="center" if q < 99 else "left", fontsize=10)
    mean = float(np.mean(values))
    axes.plot(mean, y + 0.36, "^", color=INK, ms=7)
    label(axes, mean, y + 0.38, f"mean {mean:,.3g}", dx=8, fontsize=10)


@styled
def attainment(loads: Sequence[float], shares: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Share of requests that met their objective against the load, one panel per class; shares[class][order]."""
    figure, panels = new_figure(11.5, 4.3, columns=len(shares))
    for axes, (kind, orders) in zip(panels, shares.items(), strict=True):
        for look, (name, values) in zip(LINES, orders.items(), strict=False):
            axes.plot(loads, values, label=name, **look)
        axes.axvline(1, color=MUTED, lw=1)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_ylim(-0.03, 1.05)
        axes.set_xlabel("load, in parts of the capacity")
        axes.set_title(kind)
    panels[0].set_ylabel("met their objective")
    panels[0].legend(frameon=False, fontsize=10.5, loc="lower left", handlelength=2.6)
    return figure


@styled
def goodput_curve(
    rates: Sequence[float], served: Sequence[float], good: Sequence[float], promise: str, title: str
) -> Figure:
    """Requests per second that were finished, and those that met both objectives, against the rate of arrivals."""
    figure, [axes] = new_figure(9.5, 4.6)
    axes.plot(rates, rates, color=MUTED, lw=1, ls=":")
    label(axes, rates[-1], rates[-1], "all that come", MUTED, dx=8)
    axes.plot(rates, served, **LINES[0])
    axes.plot(rates, good, **LINES[2])
    label(axes, rates[-1], served[-1], "throughput", MUTED, dx=10, weight="bold")
    label(axes, rates[-1], good[-1], f"goodput\n{promise}", dx=10, weight="bold")
    axes.fill_between(rates, good, served, color=LATE, alpha=0.6, lw=0)
    axes.set_xticks(rates)
    axes.set_xlim(0, rates[-1] * 1.34)
    axes.set_ylim(0, rates[-1] * 1.05)
    axes.set_xlabel("requests that come per second")
    axes.set_ylabel("requests per second")
    axes.set_title(title)
    return figure


@styled
def queues(runs: Mapping[str, Sequence[StepRecord]]) -> Figure:
    """Waiting requests against the time, one line per run, labelled at its end."""
    figure, [axes] = new_figure(9.5, 4.2)
    for look, (name, steps) in zip(reversed(LINES), runs.items(), strict=False):
        times = [step.time for step in steps]
        axes.plot(times, [step.waiting for step in steps], color=look["color"], ls=look["ls"], lw=1.6)
        label(axes, times[-1], steps[-1].waiting, name, look["color"], dx=6, weight="bold")
    axes.set_xlim(0, 1.22 * max(steps[-1].time for steps in runs.values()))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds")
    axes.set_ylabel("requests that wait")
    axes.set_title("The queue")
    return figure


@styled
def first_tokens(runs: Mapping[str, Sequence[Sample]], objective: float) -> Figure:
    """TTFT of each request against its arrival, one panel per run; crosses at the top: refused. Times in seconds."""
    figure, panels = new_stack(9.5, 1.1 + 2.1 * len(runs), [1] * len(runs))
    top = 1.12 * max(sample.ttft for run in runs.values() for sample in run if sample.first is not None)
    for axes, (name, run) in zip(panels, runs.items(), strict=True):
        start = min(sample.start for sample in run)
        good = [s for s in run if s.first is not None and s.ttft <= objective]
        late = [s for s in run if s.first is not None and s.ttft > objective]
        gone = [s for s in run if s.first is None]
        axes.plot([s.start - start for s in late], [s.ttft for s in late], "o", color=MUTED, mfc="white")
        axes.plot([s.start - start for s in good], [s.ttft for s in good], "o", color=INK)
        axes.plot([s.start - start for s in gone], [top * 0.93] * len(gone), "x", color=MUTED, ms=6)
        axes.axhline(objective, color=INK, lw=1, ls="--")
        label(axes, 0, objective, "objective", dx=2, dy=9)
        parts = f"{len(good)} in time, {len(late)} late, {len(gone)} refused"
        axes.set_title(f"{name}: {parts}")
        axes.set_ylim(0, top)
        axes.set_ylabel("TTFT, s")
    panels[-1].set_xlabel("arrival, seconds after the start")
    return figure
