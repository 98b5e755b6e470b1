"""The planner of notebook 03: what another attention would change for a model, a device and a load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib import facts
from course_lib.perf.memory import longest_context, plan_memory
from course_lib.perf.redesign import redesigns
from course_lib.plots.kv_memory import KV_FORMATS
from course_lib.plots.prefill_decode import FORMATS
from course_lib.plots.style import INK, KV, KV_PALE, MUTED, WEIGHTS, label, new_figure, si, styled

CONTEXTS = (256, 2**24)  # ends of the axis, in tokens
CONCURRENCY = (1, 2**16)
CONTEXT_TICKS = {2**10: "1 Ki", 2**14: "16 Ki", 2**18: "256 Ki", 2**22: "4 Mi"}
CONCURRENCY_TICKS = {2**i: f"{2**i:,}" for i in range(0, 17, 4)}


@styled
def planner_setting(
    model: str, weights: str, device: str, devices: int, kv: str, window: int, context: int, sequences: int
) -> Figure:
    """Longest context at a number of sequences (left) and most sequences at a context (right), for each `redesigns`.

    Names are those of the course's tables; weights in one of FORMATS, the cache in one of KV_FORMATS.
    """
    shape, entry = facts.model(model), facts.device(device)
    how = {"bytes_per_weight": FORMATS[weights], "bytes_per_kv": KV_FORMATS[kv], "devices": devices}
    designs = redesigns(shape, window)
    lengths = [longest_context(design, entry, sequences, **how) for design in designs.values()]
    counts = [plan_memory(design, entry, context, **how).max_sequences for design in designs.values()]
    figure, (left, right) = new_figure(11, 2.2 + 0.4 * len(designs), columns=2)
    _bars(left, lengths, CONTEXTS, CONTEXT_TICKS, context)
    _bars(right, counts, CONCURRENCY, CONCURRENCY_TICKS, sequences)
    left.set_yticks(range(len(designs)), list(designs))
    left.set_title(f"longest context of B = {sequences:,} at once", fontsize=12)
    right.set_title(f"most sequences of n = {context:,}", fontsize=12)
    left.set_xlabel("tokens of each sequence, n")
    right.set_xlabel("sequences at once, B")
    if CONTEXTS[0] < shape.context < CONTEXTS[1]:
        left.axvline(shape.context, color=MUTED, lw=1.2, ls=":")
        label(left, shape.context, len(designs) - 0.45, "trained for", MUTED, dx=3, fontsize=10)
    plan = plan_memory(shape, entry, context, **how)
    fits = plan.kv_budget > 0
    text = f"{si(plan.kv_budget, 'B')} left for the cache" if fits else "the weights alone do not fit"
    title = f"{model}, weights {weights}, KV {kv}, on {devices} × {entry.label}\n{text}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, weight="bold", color=INK if fits else WEIGHTS)
    return figure


def _bars(axes: Axes, values: Sequence[float], span: tuple[int, int], ticks: Mapping[int, str], wanted: int) -> None:
    """A bar for each value on a logarithmic axis, the first in full colour: it is the one that can be had today."""
    axes.axvline(wanted, color=INK, lw=1.2, zorder=0.9)  # behind the bars and their numbers
    side = -3 if wanted >= 16 * span[0] else 3
    label(axes, wanted, -0.75, f"wanted: {wanted:,}", dx=side, fontsize=10)
    for y, value in enumerate(values):
        end = min(max(value, span[0]), span[1])
        axes.barh(y, end - span[0], left=span[0], color=KV_PALE if y else KV, height=0.62)
        text = "any length" if math.isinf(value) else f"{int(value):,}"
        label(axes, end, y, text, KV if value >= wanted else MUTED, dx=6, weight="normal" if y else "bold")
    axes.set_xscale("log", base=2)
    axes.set_xlim(span[0], span[1] * 16)
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    axes.set_ylim(len(values) - 0.1, -1.1)
    axes.set_yticks([])
    axes.grid(axis="y", visible=False)
