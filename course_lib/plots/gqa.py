"""Figures of notebook 03, first half: which query head reads which KV head, intensity, and the time of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from course_lib.perf.roofline import Machine
from course_lib.perf.timing import Timing
from course_lib.plots.style import DECODE, INK, KV, MUTED, WEIGHTS, label, log2_x, log_y, new_figure, styled


@styled
def sharing(maps: Mapping[str, Sequence[int]]) -> Figure:
    """A panel for each way of sharing: query heads above, KV heads below, a line from each query head to what it reads.

    maps: for each title, the KV head of every query head.
    """
    figure, panels = new_figure(11, 2.7, columns=len(maps))
    for axes, (title, reads) in zip(panels, maps.items(), strict=True):
        heads, kv_heads = len(reads), max(reads) + 1
        place = (np.arange(kv_heads) + 0.5) * heads / kv_heads - 0.5
        for head, kv_head in enumerate(reads):
            axes.plot([head, place[kv_head]], [0.86, 0.14], color=MUTED, lw=1.2)
            _head(axes, head, 1, str(head), DECODE)
        for kv_head in range(kv_heads):
            _head(axes, place[kv_head], 0, str(kv_head), KV)
        axes.set_xlim(-0.7, heads - 0.3)
        axes.set_ylim(-0.35, 1.35)
        axes.axis("off")
        axes.set_title(title, fontsize=12)
    left = panels[0]
    left.text(-0.9, 1, "query", ha="right", va="center", color=DECODE, weight="bold", fontsize=11)
    left.text(-0.9, 0, "KV", ha="right", va="center", color=KV, weight="bold", fontsize=11)
    return figure


def _head(axes: Axes, x: float, y: float, text: str, color: str) -> None:
    shape = {"boxstyle": "round,pad=0.02,rounding_size=0.1", "fc": color, "ec": "none"}
    axes.add_patch(FancyBboxPatch((x - 0.33, y - 0.13), 0.66, 0.26, zorder=3, **shape))
    axes.text(x, y, text, ha="center", va="center", color="white", fontsize=10, weight="bold", zorder=4)


@styled
def intensity_of_parts(
    batches: Sequence[int], linear: Sequence[float], attention: Mapping[str, float], machine: Machine
) -> Figure:
    """FLOP per byte of a decode step's parts against its batch: linear layers rise, attention is a level each.

    linear: for each batch. attention: {name: level}, whatever the batch.
    """
    figure, [axes] = new_figure(9.5, 4.8)
    axes.plot(batches, linear, color=WEIGHTS)
    middle = len(batches) // 2
    label(axes, batches[middle], linear[middle], "linear layers", WEIGHTS, dx=-9, dy=7, weight="bold")
    for name, level in attention.items():
        axes.plot(batches, [level] * len(batches), color=KV)
        near = 0.5 < level / machine.ridge < 1  # the name would lie on the line of the ridge
        label(axes, batches[-1], level, name, KV, dx=8, dy=-8 if near else 0)
    axes.axhline(machine.ridge, color=INK, lw=1.5)
    label(axes, batches[0], machine.ridge, f"ridge of {machine.name}: {machine.ridge:,.0f}", dx=4, dy=10)
    log2_x(axes, batches)
    log_y(axes)
    axes.set_xlim(batches[0], batches[-1] * 8)
    axes.set_ylim(0.6, 2.5 * max(machine.ridge, *linear))
    axes.set_xlabel("sequences in the step, B")
    axes.set_ylabel("FLOP per byte")
    axes.set_title("What a larger batch does to the two parts of a decode step")
    return figure


@styled
def time_per_sequence(
    batches: Sequence[int], parts: Mapping[str, Sequence[Timing]], bounds: Mapping[str, Sequence[float]]
) -> Figure:
    """Measured time of a part of a step, divided by the batch; bars from p10 to p90, dotted: the roofline's bound.

    parts: {name: a timing for each batch}, linear layers first. bounds: {name: seconds for each batch}, not divided.
    """
    figure, [axes] = new_figure(9, 4.4)
    for (name, timings), color in zip(parts.items(), (WEIGHTS, KV), strict=True):
        median, spread = _spread(timings, batches)
        axes.errorbar(batches, median, yerr=spread, color=color, marker="o", capsize=4)
        axes.plot(batches, np.array(bounds[name]) / batches, color=color, ls=":", lw=1.5)
        label(axes, batches[-1], median[-1], name, color, dx=10, weight="bold")
    log2_x(axes, batches)
    log_y(axes, "s")
    axes.set_xlim(batches[0] / 1.2, batches[-1] * 2.5)
    axes.set_xlabel("sequences in the step, B")
    axes.set_ylabel("time per sequence")
    axes.set_title("Two parts of a decode step, measured (dotted: bounds)")
    return figure


@styled
def decode_times(times: Mapping[int, Mapping[int, Timing]], bounds: Mapping[int, Mapping[int, float]]) -> Figure:
    """Time of a decode step against its context, a line for each number of KV heads; dotted: the roofline's bound.

    Both are {KV heads: {context: ...}}; bounds in seconds.
    """
    figure, [axes] = new_figure(9.5, 4.8)
    heads = max(times)
    for kv_heads, timings in times.items():
        contexts = list(timings)
        shade = {"color": KV, "alpha": 0.4 + 0.6 * kv_heads / heads}
        median, spread = _spread(list(timings.values()), [1] * len(contexts))
        axes.errorbar(contexts, median, yerr=spread, marker="o", capsize=4, **shade)
        axes.plot(contexts, list(bounds[kv_heads].values()), ls=":", lw=1.5, **shade)
        label(axes, contexts[-1], median[-1], f"K = {kv_heads}", KV, dx=12, weight="bold")
    last = min(bounds)
    label(axes, contexts[0], bounds[last][contexts[0]], "dotted: bounds", MUTED, dx=0, dy=-10, ha="left")
    log2_x(axes, contexts)
    log_y(axes, "s")
    axes.margins(y=0.12)
    axes.set_xlim(contexts[0] / 1.2, contexts[-1] * 1.7)
    axes.set_xlabel("tokens of each sequence, n")
    axes.set_ylabel("time of a decode step")
    axes.set_title(f"One shape, {heads} query heads, measured (median, bars from p10 to p90)")
    return figure


def _spread(timings: Sequence[Timing], divisors: Sequence[int]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Medians, and how far p10 and p90 lie from them, as `errorbar` takes it; each divided by its divisor."""
    low, median, high = (
        np.array([getattr(timing, name) for timing in timings]) / divisors for name in ("p10", "median", "p90")
    )
    return median, [median - low, high - median]


@styled
def step_rates(contexts: Sequence[int], rates: Mapping[str, Sequence[float]], title: str) -> Figure:
    """The most tokens per second of all sequences together against their context, by bounds.

    rates: {name: one for each context}, 0 where not one sequence fits.
    """
    figure, [axes] = new_figure(9.5, 4.2)
    for i, (name, values) in enumerate(rates.items()):
        points = [(context, value) for context, value in zip(contexts, values, strict=True) if value]
        axes.plot(*zip(*points, strict=True), color=DECODE, alpha=1 - 0.6 * i / len(rates))
        label(axes, *points[-1], name, DECODE, dx=8, weight="bold")
    log2_x(axes, contexts[::2])
    log_y(axes)
    axes.set_xlim(contexts[0], contexts[-1] * 4)
    axes.set_xlabel("tokens of each sequence, n")
    axes.set_ylabel("tokens/s, at most")
    axes.set_title(title)
    return figure
