"""Figures of notebook 00: the two numbers of a machine, the next token's distribution, the map of the course."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import PercentFormatter

from course_lib.perf.roofline import Machine
from course_lib.plots.style import (
    COMPUTE,
    DECODE,
    INK,
    KV,
    KV_PALE,
    MEMORY,
    MUTED,
    PREFILL,
    WEIGHTS,
    label,
    new_figure,
    si,
    styled,
)


@styled
def two_numbers(machines: Sequence[Machine]) -> Figure:
    """Bandwidth and FLOP/s of several machines, one bar each on log axes; the first is the learner's own."""
    figure, panels = new_figure(10.5, 1.4 + 0.5 * len(machines), columns=2)
    columns = (("memory bandwidth", "bandwidth", "B/s", MEMORY), ("arithmetic", "flops", "FLOP/s", COMPUTE))
    for axes, (title, attribute, unit, color) in zip(panels, columns, strict=True):
        values = [getattr(machine, attribute) for machine in machines]
        for y, value in enumerate(values):
            axes.barh(y, value, color=color, alpha=1 if y == 0 else 0.45, height=0.62)
            times = "" if y == 0 else f"  {value / values[0]:,.0f}×"
            label(axes, value, y, si(value, unit) + times, weight="bold" if y == 0 else "normal")
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 8, max(values) * 300)
        axes.set_yticks(range(len(machines)), [machine.name for machine in machines] if axes is panels[0] else [])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_title(title)
        axes.set_xlabel(f"{unit} (log scale)")
    return figure


@styled
def next_token(tokens: Sequence[str], plain: Sequence[float], drawn: Sequence[float], title: str = "") -> Figure:
    """The most probable next tokens: pale the model's own probability, full what is drawn from after the settings."""
    figure, [axes] = new_figure(9, 1.4 + 0.36 * len(tokens))
    y = np.arange(len(tokens))
    limit = min(1.0, 3 * max(plain))  # depends on the prompt alone, so the axis stands still while a slider moves
    axes.barh(y, plain, color=MUTED, alpha=0.35, height=0.8)
    axes.barh(y, drawn, color=DECODE, height=0.45)
    for i, (p, q) in enumerate(zip(plain, drawn, strict=True)):
        text = f"{q:.0%}" if q >= 0.005 else ("under 1 %" if q > 0 else "cut")
        label(axes, min(max(p, q), limit), i, text, DECODE if q > 0 else MUTED)
    axes.set_yticks(y, [repr(token) for token in tokens])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.1 * limit)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("probability (grey: the model's own, orange: after the settings)")
    axes.set_title(title)
    return figure


@styled
def bound_and_measured(bound: float, measured: float, cold: float) -> Figure:
    """Tokens per second: the bandwidth's bound, the warm measurement, and one that counts what it should not."""
    figure, [axes] = new_figure(9, 2.6)
    rows = (("bound: bandwidth / bytes", bound, MEMORY), ("measured, decode only", measured, DECODE))
    rows += (("wrong: loading and prefill counted", cold, MUTED),)
    for y, (_, value, color) in enumerate(rows):
        axes.barh(y, value, color=color, height=0.6)
        share = f"  ({value / bound:.0%} of the bound)" if y else ""
        label(axes, value, y, f"{value:,.0f} tokens/s{share}")
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.9 * max(row[1] for row in rows))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("tokens per second of one request")
    return figure


STAGES = (("request", 0.4, INK), ("scheduler", 2.6, INK), ("prefill", 4.8, PREFILL), ("decode", 7.0, DECODE))
TOKENS = ("tokens", 9.2, INK)
STORES = (("weights", 5.9, 1.9, WEIGHTS), ("KV cache", 5.9, -1.9, KV))
NOTEBOOKS = (  # number ("" while it has none), title, place in the drawing: beside the part that it treats
    ("00", "start here", 0.4, 0.75),
    ("01", "prefill\nand decode", 5.9, 0.95),
    ("02", "KV cache", 4.1, -1.9),
    ("03", "GQA, MQA, MLA", 4.5, -2.75),
    ("04", "KV compression", 7.3, -2.75),
    ("08", "PagedAttention", 7.95, -1.9),
    ("09", "continuous batching", 2.6, -0.75),
    ("10", "scheduling", 2.6, -1.3),
    ("A1", "GPU kernels", 5.9, 2.75),
    ("", "weight quantisation", 7.95, 1.9),
    ("", "parallelism", 4.0, 1.9),
    ("", "speculative decoding", 9.2, 0.75),
    ("", "choosing a framework", 9.2, -0.75),
)


@styled
def course_map(ready: Sequence[str]) -> Figure:
    """The way of a request through an engine, and the notebook that treats each part; white ones are to be written."""
    figure, [axes] = new_figure(11, 5.4)
    axes.set_xlim(-0.6, 10.4)
    axes.set_ylim(-3.3, 3.1)
    axes.axis("off")
    flow = (*STAGES, TOKENS)
    for (name, x, color), (_, following, _) in zip(flow, (*flow[1:], flow[-1]), strict=True):
        _box(axes, x, 0, name, color, 1.5)
        if following > x:
            axes.annotate("", (following - 0.78, 0), (x + 0.78, 0), arrowprops={"arrowstyle": "->", "color": MUTED})
    for name, x, y, color in STORES:
        _box(axes, x, y, name, color, 1.7)
        side, heads = (1, "->") if y > 0 else (-1, "<->")  # weights are only read, the cache is read and written
        for stage in (4.8, 7.0):
            start, end = (x + (stage - x) * 0.5, y - side * 0.38), (stage, side * 0.38)
            axes.annotate("", end, start, arrowprops={"arrowstyle": heads, "color": MUTED})
    for number, title, x, y in NOTEBOOKS:
        done = number in ready
        axes.text(
            *(x, y, f"{number}  {title}".strip()),
            ha="center",
            va="center",
            fontsize=10.5,
            color=INK if done else MUTED,
            weight="bold" if done else "normal",
            bbox={"boxstyle": "round,pad=0.35", "fc": KV_PALE if done else "white", "ec": MUTED, "lw": 0.8},
        )
    axes.text(-0.5, -3.2, "filled: ready to run; white: to be written", fontsize=10.5, color=MUTED)
    return figure


def _box(axes: Axes, x: float, y: float, text: str, color: str, width: float) -> None:
    shape = {"boxstyle": "round,pad=0.02,rounding_size=0.12", "fc": color, "ec": "none"}
    axes.add_patch(FancyBboxPatch((x - width / 2, y - 0.33), width, 0.66, **shape))
    axes.text(x, y, text, ha="center", va="center", color="white", weight="bold")
