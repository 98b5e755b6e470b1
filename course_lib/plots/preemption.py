"""Figures of notebook 10: what it costs to bring a preempted request back, by recomputing or by swapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from course_lib.perf.timing import Timing
from course_lib.plots.style import INK, KV, MUTED, PREFILL, label, log2_x, log_y, new_figure, si, styled


@styled
def ways_back(
    lengths: Sequence[int], recompute: Mapping[str, np.ndarray], swap: Mapping[str, np.ndarray], title: str
) -> Figure:
    """Seconds to bring back a request of so many tokens; one curve per entry, both axes logarithmic."""
    figure, [axes] = new_figure(9.5, 4.8)
    for curves, color in ((recompute, PREFILL), (swap, KV)):
        for style, (name, seconds) in zip(("-", "--", ":"), curves.items(), strict=False):
            axes.plot(lengths, seconds, color=color, ls=style)
            label(axes, lengths[-1], seconds[-1], name, color, dx=8, weight="bold")
    log2_x(axes, lengths)
    log_y(axes, "s")
    axes.set_xlim(right=lengths[-1] * 25)
    axes.set_xlabel("tokens of the request")
    axes.set_ylabel("time, out and back")
    axes.set_title(title)
    return figure


@styled
def break_even(links: Mapping[str, float], roads: Mapping[str, float], title: str) -> Figure:
    """For each model the link at which both ways cost the same; roads: links that exist. All in bytes/s."""
    figure, [axes] = new_figure(9.5, 1.5 + 0.36 * len(links))
    ordered = sorted(links.items(), key=lambda entry: entry[1])
    low, high = ordered[0][1] / 2, ordered[-1][1] * 3
    for y, (_, link) in enumerate(ordered):
        axes.plot([low, link], [y, y], color=PREFILL, lw=1, alpha=0.5)
        axes.plot([link, high], [y, y], color=KV, lw=1, alpha=0.7)
        axes.plot(link, y, "o", color=INK)
        label(axes, link, y, si(link, "B/s"), dx=0, dy=10, ha="center", fontsize=10)
    for name, link in roads.items():
        axes.axvline(link, color=MUTED, lw=1.4, ls="--")
        label(axes, link, len(links) - 0.3, name, MUTED, dx=0, ha="center", fontsize=10.5)
    label(axes, low * 1.1, -0.85, "slower link: recompute", PREFILL, dx=0, weight="bold")
    label(axes, high / 1.1, -0.85, "faster link: swap", KV, dx=-1, weight="bold")
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(-1.3, len(links) + 0.1)
    axes.set_yticks(range(len(ordered)), [name for name, _ in ordered])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: si(value, "B/s")))
    axes.minorticks_off()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("bandwidth between the device and host memory, one direction")
    axes.set_title(title)
    return figure


@styled
def measured_ways(lengths: Sequence[int], recompute: Sequence[Timing], swap: Sequence[Timing], title: str) -> Figure:
    """Measured seconds of both ways, median and p10 to p90, both axes logarithmic."""
    figure, [axes] = new_figure(9, 4.2)
    for timings, color, name in ((recompute, PREFILL, "recompute"), (swap, KV, "swap, out and back")):
        median = np.array([timing.median for timing in timings])
        around = [[t.median - t.p10 for t in timings], [t.p90 - t.median for t in timings]]
        axes.errorbar(lengths, median, yerr=around, color=color, marker="o", capsize=4)
        label(axes, lengths[-1], median[-1], name, color, dx=10, weight="bold")
    log2_x(axes, lengths)
    log_y(axes, "s")
    axes.set_xlim(right=lengths[-1] * 3.5)
    axes.set_xlabel("tokens of the request")
    axes.set_ylabel("time")
    axes.set_title(title)
    return figure
