"""Figures of notebook 02, second half: the size of a cache, what fits beside the weights, and what a cache wastes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure

from course_lib import facts
from course_lib.facts import ModelShape
from course_lib.perf.memory import MemoryPlan, plan_memory
from course_lib.plots.prefill_decode import FORMATS
from course_lib.plots.style import DECODE, INK, KV, KV_PALE, MUTED, WEIGHTS, label, log2_x, new_figure, styled

RESERVED = "#E3E3E3"
NEVER_USED = "#BDBDBD"
# Bytes per KV element, scales included: llama.cpp's q8_0 and q4_0 add one float16 per 32 elements (ggml-common.h).
KV_FORMATS = {"16 bit": 2.0, "fp8": 1.0, "q8_0 (8.5 bit)": 8.5 / 8, "q4_0 (4.5 bit)": 4.5 / 8}


@styled
def printed_and_computed(rows: Sequence[tuple[str, float, float]]) -> Figure:
    """Sizes as often printed beside the computed ones. rows: (name, printed bytes, computed bytes)."""
    figure, [axes] = new_figure(9.5, 1.4 + 0.42 * len(rows))
    for y, (_, printed, computed) in enumerate(rows):
        axes.plot([printed, computed], [y, y], color=MUTED, lw=1)
        axes.plot(printed, y, "o", color=MUTED, mfc="white", mew=2)
        axes.plot(computed, y, "o", color=KV)
        label(axes, computed, y, f"{computed / 1e9:.3f} GB", KV, dx=9, weight="bold")
        label(axes, printed, y, f"{printed / 1e6:.1f} MB", MUTED, dx=-9)
    axes.set_xscale("log")
    axes.set_xlim(min(row[1] for row in rows) / 5, max(row[2] for row in rows) * 5)
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("bytes of KV cache for one sequence (log scale)")
    axes.set_title("Hollow: as often printed. Filled: 2·L·K·d·n·b")
    return figure


@styled
def bytes_per_token(shapes: Sequence[ModelShape], bytes_per_element: float = 2) -> Figure:
    """KV bytes that one token adds in each model, with the number of tokens whose cache is as large as the weights."""
    figure, [axes] = new_figure(9.5, 1.4 + 0.45 * len(shapes))
    for y, shape in enumerate(shapes):
        per_token = shape.kv_bytes_per_token(bytes_per_element)
        axes.barh(y, per_token / 1024, color=KV)
        tokens = shape.params * bytes_per_element / per_token
        text = f"{per_token / 1024:,.1f} KiB;  KV = weights at {tokens:,.0f} tokens"
        label(axes, per_token / 1024, y, text, fontsize=10.5)
    names = [f"{shape.name}  (L {shape.layers}, {_heads(shape)})" for shape in shapes]
    axes.set_yticks(range(len(shapes)), names)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.margins(x=1)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"KiB per token (1,024 bytes), {bytes_per_element:g} bytes per element")
    axes.set_title("What one token adds to the cache")
    return figure


def _heads(shape: ModelShape) -> str:
    return "MLA" if shape.kv_heads is None else f"K {shape.kv_heads}, d {shape.head_dim}"


@styled
def memory_budget(plan_at: Callable[[int], MemoryPlan], context: int, sequences: int, title: str = "") -> Figure:
    """Weights and the cache of B sequences against the memory there is (left); the most that fit by context (right).

    plan_at: the plan for sequences of a given length.
    """
    figure, (bar, curve) = new_figure(10.5, 4.2, columns=2)
    plan = plan_at(context)
    kv = sequences * plan.kv_per_sequence
    fits = sequences <= plan.max_sequences
    bar.bar(0, plan.memory / 1e9, color=RESERVED)
    bar.bar(0, plan.weights / 1e9, color=WEIGHTS)
    bar.bar(0, kv / 1e9, bottom=plan.weights / 1e9, color=KV, hatch=None if fits else "//", ec="white", lw=0)
    for height, text, line, dy in ((plan.memory, "memory", "-", 9), (plan.usable, "usable", "--", -9)):
        bar.plot([-1.4, 0.4], [height / 1e9] * 2, color=INK, lw=1.2, ls=line)
        label(bar, -1.4, height / 1e9, f"{text} {height / 1e9:,.0f} GB", dx=3, dy=dy)
    top = 1.15 * max(plan.memory, plan.weights + kv) / 1e9
    low = max(plan.weights / 2e9, 0.07 * top)  # the two names stay apart where a part is too thin for its own
    high = max((plan.weights + kv / 2) / 1e9, low + 0.15 * top)
    label(bar, 0.4, low, f"weights\n{plan.weights / 1e9:,.1f} GB", WEIGHTS, weight="bold")
    label(bar, 0.4, high, f"KV of {sequences:,}\n{kv / 1e9:,.1f} GB", KV, weight="bold")
    bar.set_xlim(-1.4, 1.4)
    bar.set_ylim(0, top)
    bar.set_xticks([])
    bar.set_ylabel("GB (1e9 bytes)")
    bar.set_title(f"{sequences:,} × {context:,} tokens: " + ("fit" if fits else f"{plan.max_sequences:,} fit"))
    lengths = [2**i for i in range(9, 18)]
    most = [plan_at(n).max_sequences for n in lengths]
    curve.plot(lengths, [count or np.nan for count in most], color=KV)
    curve.plot(context, sequences, "o", color=KV if fits else DECODE)
    if plan.kv_budget <= 0:
        curve.text(0.5, 0.25, "the weights alone do not fit", transform=curve.transAxes, ha="center", color=WEIGHTS)
    label(curve, context, sequences, f"{sequences:,} × {context:,}", KV if fits else DECODE, dy=12, weight="bold")
    log2_x(curve, lengths)
    curve.tick_params(axis="x", labelrotation=40)
    curve.set_yscale("log")
    curve.set_ylim(0.7, 2 * max(2048, *most))
    curve.set_xlabel("context n, tokens per sequence")
    curve.set_ylabel("most sequences at once")
    curve.set_title("what fits")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, weight="bold")
    return figure


def budget_setting(
    model: str, weights: str, device: str, devices: int, kv: str, context: int, sequences: int
) -> Figure:
    """`memory_budget` of a model and devices by name, weights in one of FORMATS and the cache in one of KV_FORMATS."""
    shape, entry = facts.model(model), facts.device(device)

    def plan_at(n: int) -> MemoryPlan:
        return plan_memory(shape, entry, n, FORMATS[weights], KV_FORMATS[kv], devices)

    title = f"{model}, weights {weights}, KV {kv}, on {devices} × {entry.label}"
    return memory_budget(plan_at, context, sequences, title)


@styled
def occupancy(used: Sequence[float], reserved: float, at: int) -> Figure:
    """Bytes that hold tokens against bytes reserved, step by step of a static batch; `at` marks one step."""
    figure, [axes] = new_figure(9.5, 4)
    steps = np.arange(len(used))
    axes.fill_between(steps, reserved / 1e9, color=RESERVED)
    axes.fill_between(steps, np.array(used) / 1e9, color=KV)
    axes.axhline(reserved / 1e9, color=INK, lw=2)
    label(axes, 0, reserved / 1e9, f"reserved: {reserved / 1e9:.2f} GB", dx=4, dy=10)
    peak = int(np.argmax(used))
    label(axes, peak, used[peak] / 1e9, "holds tokens of running requests", KV, dx=10, dy=10, weight="bold")
    label(axes, steps[-1] / 2, 0.55 * reserved / 1e9, "reserved, holds nothing", dx=0, ha="center", path_effects=[])
    axes.axvline(at, color=INK, lw=1, ls=":")
    axes.set_ylim(0, 1.15 * reserved / 1e9)
    axes.set_xlim(0, len(used))
    axes.set_xlabel("decode step")
    axes.set_ylabel("GB (1e9 bytes)")
    axes.set_title("A contiguous cache while a batch runs")
    return figure


@styled
def memory_map(held: Sequence[int], final: Sequence[int], capacity: int, step: int) -> Figure:
    """The rows of a contiguous cache at one step: tokens held now, room that will be used, room that never will.

    held: tokens of each row now, 0 for a request that is done. final: tokens that the row's request ends with.
    """
    figure, [axes] = new_figure(9.5, 1.3 + 0.28 * len(held))
    for row, (now, end) in enumerate(zip(held, final, strict=True)):
        axes.barh(row, capacity, color=NEVER_USED, height=0.85)
        if now:
            axes.barh(row, end, color=KV_PALE, height=0.85)
            axes.barh(row, now, color=KV, height=0.85)
        else:
            label(axes, capacity / 2, row, "request done, row kept", dx=0, ha="center", path_effects=[])
    # The row with room for all three names.
    row = max(range(len(held)), key=lambda r: min(held[r], final[r] - held[r], capacity - final[r]))
    edges = (0, held[row], final[row], capacity)
    for left, right, text in zip(edges, edges[1:], ("held", "will be used", "never used"), strict=False):
        label(axes, (left + right) / 2, row, text, dx=0, ha="center", weight="bold", path_effects=[])
    axes.set_yticks([0, len(held) - 1])
    axes.set_xlim(0, capacity)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_xlabel("slot of the row, in tokens")
    axes.set_ylabel("row")
    axes.set_title(f"The memory at step {step}")
    return figure
