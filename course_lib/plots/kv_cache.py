"""Figures of notebook 02, first half: what a cache saves, how long a step takes, what wrong ways do to the logits.

A step without a cache is a prefill of everything so far and has the colour of prefill; with one it is a decode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from course_lib.perf.timing import Timing
from course_lib.plots.style import DECODE, INK, KV, KV_PALE, MUTED, PREFILL, label, log2_x, log_y, new_figure, styled


@dataclass(frozen=True)
class StepTime:
    """Measured time of producing the token after position t - 1, and the roofline's lower bound, in seconds."""

    t: int
    without: Timing
    cached: Timing
    without_bound: float
    cached_bound: float


@styled
def changed_keys(change: Tensor, position: int) -> Figure:
    """Largest change of each stored key, [L, n], after the token at `position` was replaced by another."""
    figure, [axes] = new_figure(9.5, 3.6)
    layers, n = change.shape
    shades = LinearSegmentedColormap.from_list("keys", ["white", KV_PALE, KV])
    shown = np.log10(change.float().clamp(1e-6, 1).cpu().numpy())
    axes.pcolormesh(np.arange(n + 1), np.arange(layers + 1), shown, cmap=shades, vmin=-6, vmax=0, ec="#E3E3E3", lw=0.5)
    axes.axvline(position, color=INK, lw=2)
    label(axes, position / 2, layers / 2, "unchanged:\nstays in the cache", dx=0, ha="center")
    label(axes, (position + n) / 2, layers / 2, "changed:\nmust be computed again", dx=0, ha="center", weight="bold")
    axes.set_xticks([0.5, position + 0.5, n - 0.5], ["0", f"{position}\n(replaced)", f"{n - 1}"])
    axes.set_yticks([0.5, layers - 0.5], ["0", f"{layers - 1}"])
    axes.grid(visible=False)
    axes.set_xlabel("position of the token")
    axes.set_ylabel("layer")
    axes.set_title("Which keys change when one token is replaced")
    return figure


@styled
def steps_of_work(n: int) -> Figure:
    """Which positions each of n steps computes, without and with a cache."""
    figure, panels = new_figure(10, 4.6, columns=2)
    step, position = np.mgrid[1 : n + 1, 1 : n + 1]
    triangle = position <= step
    without, cached = triangle.astype(int), np.where(position == step, 2, np.where(triangle, 3, 0))
    shades = ListedColormap(["white", PREFILL, DECODE, KV_PALE])
    for axes, work in zip(panels, (without, cached), strict=True):
        axes.pcolormesh(np.arange(n + 1) + 0.5, np.arange(n + 1) + 0.5, work, cmap=shades, vmin=0, vmax=3, ec="white")
        axes.set_xticks([1, n])
        axes.set_yticks([1, n])
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.set_xlabel("position")
        axes.set_ylabel("step t")
    left, right = panels
    left.set_title(f"without a cache: {n * (n + 1) // 2} token passes")
    right.set_title(f"with a cache: {n} token passes")
    label(left, n * 0.35, n * 0.75, "computed", "white", dx=0, ha="center", weight="bold", path_effects=[])
    label(right, n * 0.35, n * 0.75, "keys and values\nread from the cache", dx=0, ha="center")
    label(right, n * 0.55, n * 0.4, "computed", DECODE, dx=8, weight="bold")
    return figure


@styled
def totals(n_max: int) -> Figure:
    """Token passes and attention pairs of a whole generation against its length n."""
    figure, panels = new_figure(10, 4.4, columns=2)
    n = np.array([2.0**i for i in range(int(np.log2(n_max)) + 1)])
    curves = (
        ("linear layers", "token passes", n * (n + 1) / 2, n, "n(n+1)/2", "n"),
        ("attention", "query-key pairs", n * (n + 1) * (n + 2) / 6, n * (n + 1) / 2, "n(n+1)(n+2)/6", "n(n+1)/2"),
    )
    for axes, (title, unit, without, cached, without_formula, cached_formula) in zip(panels, curves, strict=True):
        axes.plot(n, without, color=PREFILL)
        axes.plot(n, cached, color=DECODE)
        axes.annotate("", (n[-1], without[-1]), (n[-1], cached[-1]), arrowprops={"arrowstyle": "<->", "color": MUTED})
        middle = np.sqrt(without[-1] * cached[-1])
        label(axes, n[-1], middle, f"{without[-1] / cached[-1]:,.1f}×", weight="bold")
        label(axes, n[-4], without[-4], f"without: {without_formula}", PREFILL, dx=-10, dy=6)
        label(axes, n[-6], cached[-6], f"with: {cached_formula}", DECODE, dx=8, dy=-12)
        log2_x(axes, [int(value) for value in n[::2]])
        axes.set_xlim(right=n[-1] * 5)
        axes.set_yscale("log")
        axes.set_title(title)
        axes.set_xlabel("tokens generated, n")
        axes.set_ylabel(unit)
    return figure


@styled
def step_times(points: Sequence[StepTime]) -> Figure:
    """Time of one step against its position: measured with spread, and the lower bound that the roofline gives."""
    figure, [axes] = new_figure(9, 4.8)
    t = [point.t for point in points]
    for name, text, color, dy in (("without", "without a cache", PREFILL, 14), ("cached", "with a cache", DECODE, -16)):
        timings = [getattr(point, name) for point in points]
        median = np.array([timing.median for timing in timings])
        spread = [median - [timing.p10 for timing in timings], [timing.p90 for timing in timings] - median]
        axes.errorbar(t, median, yerr=spread, color=color, marker="o", capsize=4)
        axes.plot(t, [getattr(point, f"{name}_bound") for point in points], color=color, ls=":", lw=1.5)
        label(axes, t[-1], median[-1], text, color, dx=-10, dy=dy, weight="bold")
    label(axes, t[0], points[0].cached_bound, "dotted: lower bounds of notebook 01", MUTED, dx=0, dy=-12, ha="left")
    log2_x(axes, t)
    log_y(axes, "s")
    axes.margins(y=0.15)
    axes.set_xlabel("tokens in the sequence, t")
    axes.set_ylabel("time to the next token")
    axes.set_title("One step, measured (median, bars from p10 to p90)")
    return figure


@styled
def step_bounds(t: Sequence[int], without: Sequence[float], cached: Sequence[float], title: str) -> Figure:
    """Lower bounds of one step, in seconds, against its position, and how many times the cache divides them."""
    figure, [axes] = new_figure(9, 4.4)
    without, cached = np.array(without), np.array(cached)
    axes.plot(t, without, color=PREFILL)
    axes.plot(t, cached, color=DECODE)
    axes.fill_between(t, cached, without, color=KV_PALE, alpha=0.5, lw=0)
    label(axes, t[-3], without[-3], "without a cache", PREFILL, dx=-10, dy=8, weight="bold")
    label(axes, t[-3], cached[-3], "with a cache", DECODE, dx=-10, dy=-14, weight="bold")
    for i in range(1, len(t), 2):
        factor = without[i] / cached[i]
        # Where the two coincide there is no room between them.
        text, shift = (f"{factor:.3g}×", 0) if factor > 2 else ("same", 12)
        label(axes, t[i], np.sqrt(without[i] * cached[i]), text, dx=0, dy=shift, ha="center")
    log2_x(axes, t[::2])
    log_y(axes, "s")
    axes.margins(y=0.15)
    axes.set_xlabel("tokens in the sequence, t")
    axes.set_ylabel("time of one step, at least")
    axes.set_title(title)
    return figure


@styled
def logits_errors(
    errors: Mapping[str, Tensor], first: int, tolerance: float, title: str = "A chunk of tokens on a filled cache"
) -> Figure:
    """Largest error of each position's logits, one line per way of computing them; `first` is their first position."""
    figure, [axes] = new_figure(9.5, 4.8)
    count = max(len(error) for error in errors.values())
    height = np.inf
    # From the largest error to the smallest, so that the labels at the right end can be kept apart.
    order = sorted(errors, key=lambda name: -float(errors[name][-1]))
    for name, color in zip(order, (PREFILL, KV, MUTED, DECODE), strict=False):
        values = errors[name].clamp(min=1e-7).cpu().numpy()
        axes.plot(range(first, first + count), values, color=color)
        height = min(values[-1], height / 3)
        label(axes, first + count - 1, height, name, color, dx=10, weight="bold")
    axes.axhline(tolerance, color=INK, lw=1, ls="--")
    label(axes, first, tolerance, f"bound for rounding: {tolerance:.1g}", dx=2, dy=9)
    axes.set_yscale("log")
    axes.set_xlim(first, first + 1.3 * count)
    axes.set_xticks(range(first, first + count, max(1, count // 6)))
    axes.set_xlabel("position of the token")
    axes.set_ylabel("largest error of a logit")
    axes.set_title(title)
    return figure
