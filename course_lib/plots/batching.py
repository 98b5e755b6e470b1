"""Figures of notebook 09, first half: what one step computes, what static batching loses, what a larger batch costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.engine import Metrics
from course_lib.perf.timing import Timing
from course_lib.plots.style import (
    COMPUTE,
    DECODE,
    INK,
    KV,
    MEMORY,
    MUTED,
    PREFILL,
    WEIGHTS,
    label,
    log2_x,
    new_figure,
    new_stack,
    styled,
)

Feed = tuple[str, int, int]  # name of a request, its cached tokens, its new tokens in the step


@styled
def ragged_batch(feeds: Sequence[Feed]) -> Figure:
    """The rows of one forward pass, and the keys that each row attends to: of its own request, up to itself."""
    figure, [axes] = new_figure(10.5, 1.5 + 0.4 * sum(new for _, _, new in feeds))
    row, left = 0, 0.0
    for name, cached, new in feeds:
        color = DECODE if cached else PREFILL
        for i in range(new):
            for key in range(cached + i + 1):
                cell = Rectangle((left + key, row + i), 0.9, 0.84, fc=KV if key < cached else color, ec="none")
                axes.add_patch(cell)
            label(axes, -0.3, row + i + 0.42, f"{name}, position {cached + i}", color, dx=-4, weight="bold")
        middle = left + (cached + new) / 2
        label(axes, middle, row, f"{new} × {cached + new} keys", dx=0, dy=10, ha="center", fontsize=10.5)
        row, left = row + new, left + cached + new + 1.2
    axes.plot([left - 0.5, left, left, left - 0.5], [0, 0, row, row], color=WEIGHTS)
    label(axes, left, row / 2, f"linear layers:\none product,\n{row} rows", WEIGHTS, dx=8, weight="bold")
    axes.set_xlim(-4.6, left + 4.2)
    axes.set_ylim(row + 0.2, -0.9)
    axes.axis("off")
    axes.set_title("One step: pink are cached keys, blue a prompt, orange a decode")
    return figure


@styled
def busy_seats(runs: Mapping[str, Metrics], seats: int) -> Figure:
    """How many seats each step filled, one panel for each run; what is white below the dashed line was idle."""
    figure, panels = new_stack(11, 1.5 * len(runs) + 0.7, [1] * len(runs))
    for axes, (name, metrics) in zip(panels, runs.items(), strict=True):
        running = [record.running for record in metrics.steps]
        axes.bar(range(len(running)), running, width=1, align="edge", color=DECODE)
        axes.plot([0, len(running), len(running)], [seats, seats, 0], color=INK, lw=1.2, ls="--")
        idle = 1 - sum(running) / (seats * len(running))
        label(axes, len(running), seats / 2, f"{len(running)} steps,\n{idle:.0%} idle", dx=8, weight="bold")
        axes.set_ylim(0, seats * 1.15)
        axes.set_yticks([0, seats])
        axes.set_ylabel("seats")
        axes.set_title(name)
    panels[-1].set_xlim(0, 1.16 * max(len(metrics.steps) for metrics in runs.values()))
    panels[-1].set_xlabel("steps")
    return figure


@styled
def static_gain(seats: Sequence[int], counted: Mapping[str, Sequence[float]]) -> Figure:
    """Steps of static over steps of continuous batching against seats: the closed forms, and dots that were counted.

    counted: {"uniform", "exponential", "log-normal": one value for each entry of seats}.
    """
    figure, [axes] = new_figure(9.5, 4.6)
    B = np.arange(1, max(seats) * 2 + 1)
    generator = np.random.default_rng(0)
    normal = np.exp(generator.standard_normal((20_000, len(B))) - 0.5)  # mean 1, sigma 1
    curves = {
        "uniform": (2 * B / (B + 1), "uniform: 2B / (B + 1)", PREFILL),
        "exponential": (np.cumsum(1 / B), "exponential: 1 + 1/2 + ... + 1/B", DECODE),
        "log-normal": (np.maximum.accumulate(normal, axis=1).mean(axis=0), "log-normal, σ = 1 (by drawing)", KV),
    }
    for name, (gain, text, color) in curves.items():
        axes.plot(B, gain, color=color)
        axes.plot(seats, counted[name], "o", color=color, mec="white", ms=10)
        label(axes, B[-1], gain[-1], text, color, dx=8, weight="bold")
    axes.axhline(1, color=MUTED, lw=1.5)
    label(axes, B[-1], 1, "all lengths equal: 1", MUTED, dx=8, dy=9)
    log2_x(axes, [1, *seats])
    axes.set_xlim(1, B[-1] * 9)
    axes.set_ylim(0.6, None)
    axes.set_xlabel("seats B")
    axes.set_ylabel("steps, static / continuous")
    axes.set_title("E[max] / E[X]: lines are the formula, dots the engine's scheduler, counted")
    return figure


@styled
def step_time(batches: Sequence[int], here: Sequence[Timing], bounds: Mapping[str, Sequence[float]]) -> Figure:
    """Time of a decode step against its batch, relative to a batch of 1: measured here, and roofline bounds."""
    figure, [axes] = new_figure(9.5, 4.6)
    unit = here[0].median
    low, median, high = (np.array([getattr(t, name) for t in here]) / unit for name in ("p10", "median", "p90"))
    axes.fill_between(batches, low, high, color=DECODE, alpha=0.2, lw=0)
    axes.plot(batches, median, color=DECODE, marker="o")
    ends = [(median[-1], "measured here", DECODE)]
    for (name, seconds), color in zip(bounds.items(), (COMPUTE, MEMORY), strict=False):
        relative = np.array(seconds) / seconds[0]
        axes.plot(batches, relative, color=color, ls="--")
        ends.append((relative[-1], name, color))
    axes.plot(batches, batches, color=MUTED, lw=1, ls=":")
    ends.append((batches[-1], "no sharing: B times as long", MUTED))
    axes.set_yscale("log", base=2)
    _name_ends(axes, batches[-1], ends)
    log2_x(axes, batches)
    axes.set_yticks(batches, [f"{value}×" for value in batches])
    axes.set_xlim(1, batches[-1] * 5)
    axes.set_ylim(0.8 * min(1, *low), batches[-1] * 1.3)
    axes.set_xlabel("sequences in the step, B")
    axes.set_ylabel("T(B) / T(1)")
    axes.set_title("What a step costs as the batch grows")
    return figure


def _name_ends(axes: Axes, x: float, ends: Sequence[tuple[float, str, str]]) -> None:
    """Name lines at their right ends (value, text, colour), on a log axis and a readable distance apart."""
    place = 0.0
    for value, text, color in sorted(ends):
        place = max(value, place * 1.32)
        label(axes, x, place, text, color, dx=10, weight="bold")


@styled
def users_and_total(panels: Mapping[str, Sequence[tuple[int, float]]]) -> Figure:
    """Tokens per second of all users against those of one, a point for each batch.

    panels: {title: [(B, T(B) in seconds)]}.
    """
    figure, axes = new_figure(11, 4.4, columns=len(panels))
    for each, (title, points) in zip(axes, panels.items(), strict=True):
        batch, seconds = np.array(points).T
        user, total = 1 / seconds, batch / seconds
        each.plot(user, total, color=DECODE, marker="o")
        for B, x, y in zip(batch, user, total, strict=True):
            label(each, x, y, f"B = {B:.0f}", INK, dx=8, dy=5)
        each.set_xlim(0, 1.25 * user.max())
        each.set_ylim(0, 1.15 * total.max())
        each.set_xlabel("tokens/s of one user, 1 / T(B)")
        each.set_title(title)
        for axis in (each.xaxis, each.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes[0].set_ylabel("tokens/s of all users, B / T(B)")
    return figure
