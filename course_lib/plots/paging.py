"""Figures of notebook 08: who holds the memory, the size of a block, what batch and hits gain, what the table costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from course_lib.perf.fragmentation import MemoryUse
from course_lib.perf.timing import Timing
from course_lib.plots.kv_memory import NEVER_USED
from course_lib.plots.style import (
    DECODE,
    INK,
    KV,
    KV_PALE,
    MUTED,
    PREFILL,
    WEIGHTS,
    label,
    log2_x,
    new_figure,
    styled,
)

PARTS = (("held", "tokens", KV), ("later", "later", KV_PALE), ("never", "never", NEVER_USED), ("gaps", "gaps", "white"))


@styled
def memory_use(uses: Mapping[str, MemoryUse], published: Mapping[str, float]) -> Figure:
    """Shares of the memory by way of handing it out; triangles: published shares that held tokens."""
    figure, [axes] = new_figure(10.5, 1.5 + 0.6 * len(uses))
    for y, use in enumerate(uses.values()):
        left = 0.0
        for name, text, color in PARTS:
            share = getattr(use, name)
            axes.barh(y, share, left=left, color=color, height=0.62, ec=MUTED, lw=0.6)
            if share > 0.06:
                text = f"{share:.0%} {text}" if share > 0.11 else f"{share:.0%}"
                label(axes, left + share / 2, y, text, dx=0, ha="center", fontsize=10, path_effects=[])
            left += share
        label(axes, 1, y, f"{use.running:.1f} requests at once", dx=8)
    for y, name in enumerate(uses):
        if name in published:
            axes.plot(published[name], y - 0.41, "v", color=INK, ms=7)
            label(axes, published[name], y - 0.42, f"paper {published[name]:.1%}", dx=8, fontsize=10)
    axes.set_yticks(range(len(uses)), list(uses))
    axes.set_ylim(len(uses) - 0.5, -0.85)
    axes.set_xlim(0, 1.3)
    axes.set_xticks(np.arange(0, 1.01, 0.2))
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("share of the KV memory, mean over the run")
    axes.set_title("Who has the memory: tokens, slots filled later, never filled, gaps")
    return figure


@styled
def block_size(sizes: Sequence[int], waste: Sequence[float], lost: Sequence[float], entries: Sequence[float]) -> Figure:
    """By block size: empty slots of a sequence, prefix tokens that no block match finds, table entries of a sequence.

    waste, lost, entries: measured means.
    """
    figure, (left, right) = new_figure(11, 4.2, columns=2)
    b = np.array(sizes)
    left.plot(b, b - 1, color=MUTED, ls="--")
    label(left, b[-2], b[-2] - 1, "at most b − 1", MUTED, dx=-8, dy=8)
    left.plot(b, (b - 1) / 2, color=INK, lw=1.2)
    label(left, b[-3], (b[-3] - 1) / 2, "(b − 1) / 2", dx=10, dy=-8)
    left.plot(b, lost, "D", color=PREFILL, mfc="white", mew=2, ms=11)
    left.plot(b, waste, "o", color=KV, ms=6)
    label(left, b[3], 1.6, "dots: empty slots", KV, dx=0, weight="bold")
    label(left, b[3], 0.9, "diamonds: common tokens\nnot found", PREFILL, dx=0, weight="bold")
    left.set_ylabel("tokens per sequence")
    left.set_title("what small blocks gain")
    right.plot(b, entries, color=DECODE, marker="o")
    right.set_ylabel("blocks per sequence")
    right.set_title("what large blocks gain")
    label(right, b[0], entries[0], f"{entries[0]:,.0f} table entries", DECODE, dx=12, weight="bold")
    label(right, b[-1], entries[-1], f"{entries[-1]:.1f}", DECODE, dx=0, dy=14, ha="center", weight="bold")
    for axes in (left, right):
        log2_x(axes, sizes)
        axes.set_yscale("log")
        axes.set_xlabel("block size b, tokens")
    left.set_ylim(0.3, None)
    return figure


@styled
def batch_gain(weights: float, kv_per_request: float, running: Mapping[str, float]) -> Figure:
    """Bound of decode throughput against requests at once, relative to the first entry of `running`. Sizes in bytes."""
    figure, [axes] = new_figure(9.5, 4.4)

    def rate(requests):
        return requests / (weights + requests * kv_per_request)

    unit = rate(next(iter(running.values())))
    most = max(running.values())
    requests = np.geomspace(1, most * 8, 200)
    axes.plot(requests, rate(requests) / unit, color=DECODE)
    ceiling = 1 / kv_per_request / unit
    axes.axhline(ceiling, color=INK, lw=1, ls="--")
    label(axes, 1, ceiling, f"with infinitely many requests: {ceiling:.1f}×", dx=2, dy=9)
    for i, (name, count) in enumerate(running.items()):
        value = rate(count) / unit
        axes.plot(count, value, "o", color=KV)
        shift = {"dx": 10, "dy": -10} if i % 2 else {"dx": -8, "dy": 10}  # on both sides of the curve in turns
        label(axes, count, value, f"{name}: {value:.1f}×", KV, weight="bold", **shift)
    axes.set_xscale("log")
    axes.set_xticks([1, 10, 100], ["1", "10", "100"])
    axes.set_ylim(0, 1.18 * ceiling)
    axes.set_xlabel("requests at once, B")
    axes.set_ylabel("tokens per second, relative")
    axes.set_title("The same memory holds more requests: what it gains")
    return figure


@styled
def saved_work(points: Sequence[tuple[float, float, float]]) -> Figure:
    """Saved share of a prefill's work against the hit rate; points: measured (hit, linear layers, attention)."""
    figure, [axes] = new_figure(8.5, 4.4)
    r = np.linspace(0, 1, 101)
    hits, linear, attention = np.array(points).T
    axes.plot(r, r, color=WEIGHTS)
    axes.plot(r, r**2, color=KV)
    axes.plot(hits, linear, "o", color=WEIGHTS)
    axes.plot(hits, attention, "o", color=KV)
    label(axes, 0.42, 0.42, "linear layers: r", WEIGHTS, dx=-10, dy=10, weight="bold")
    label(axes, 0.6, 0.36, "attention: r²", KV, dx=12, dy=-10, weight="bold")
    label(axes, 0.02, 0.93, "dots: counted on the engine", MUTED)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("share of the prompt that is found, r")
    axes.set_ylabel("share of the work that is saved")
    axes.set_title("A prefix hit")
    return figure


@styled
def indirection(lengths: Sequence[int], contiguous: Sequence[Timing], paged: Sequence[Timing], what: str) -> Figure:
    """Measured times with a contiguous and with a paged cache, median and p10 to p90, and their ratio."""
    figure, [axes] = new_figure(9, 4.2)
    for timings, color, name, dy in ((contiguous, MUTED, "contiguous", -16), (paged, KV, "paged", 14)):
        median = np.array([timing.median for timing in timings]) * 1e3
        spread = [[t.median - t.p10 for t in timings], [t.p90 - t.median for t in timings]]
        axes.errorbar(lengths, median, yerr=np.array(spread) * 1e3, color=color, marker="o", capsize=4)
        label(axes, lengths[-1], median[-1], name, color, dx=10, dy=dy / 3, weight="bold")
    for n, a, b in zip(lengths, contiguous, paged, strict=True):
        label(axes, n, max(a.p90, b.p90) * 1e3, f"{b.median / a.median:.2f}×", dx=0, dy=12, ha="center")
    log2_x(axes, lengths)
    axes.set_xlim(right=lengths[-1] * 1.8)
    axes.set_ylim(0, 1.25 * max(timing.p90 for timing in (*contiguous, *paged)) * 1e3)
    axes.set_xlabel("tokens in the cache, per sequence")
    axes.set_ylabel("ms")
    axes.set_title(what)
    return figure
