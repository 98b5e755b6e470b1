"""Figures of notebook 01: the cost of a pass, the time of a request, what batch and context do to intensity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from course_lib import facts
from course_lib.config import ModelConfig
from course_lib.facts import ModelShape
from course_lib.outputs import RequestMetrics
from course_lib.perf.counts import PassCost, decode_cost, matmul_params, prefill_cost
from course_lib.perf.roofline import Machine, critical_context, time_bound
from course_lib.perf.timing import Timing
from course_lib.plots.roofline import Point, draw_roofline
from course_lib.plots.style import (
    COMPUTE,
    DECODE,
    INK,
    KV,
    MUTED,
    PREFILL,
    WEIGHTS,
    label,
    log2_x,
    log_y,
    new_figure,
    si,
    styled,
)

FORMATS = {"16 bit": 2.0, "8 bit": 1.0, "4 bit": 0.5}  # bytes per weight or KV element


@styled
def pass_times(timings: Mapping[int, Timing]) -> Figure:
    """Time of one pass (left) and time per token (right) against tokens in the pass; the band is p10 to p90."""
    figure, (whole, each) = new_figure(10, 4.2, columns=2)
    tokens = np.array(list(timings))
    for axes, divisor, unit in ((whole, 1, "s"), (each, tokens, "s")):
        low, median, high = (
            np.array([getattr(timing, name) for timing in timings.values()]) / divisor
            for name in ("p10", "median", "p90")
        )
        axes.fill_between(tokens, low, high, color=PREFILL, alpha=0.2, lw=0)
        axes.plot(tokens, median, color=PREFILL, marker="o")
        log2_x(axes, tokens.tolist())
        log_y(axes, unit)
        axes.set_xlabel("tokens in the pass")
    whole.set_title("one pass")
    each.set_title("per token of the pass")
    first = timings[tokens[0]].median
    whole.plot(tokens, first * tokens / tokens[0], color=MUTED, ls=":", lw=1.5)
    label(whole, tokens[-2], first * tokens[-2] / tokens[0], "if every token\ncost as much\nas the first", MUTED, dx=-9)
    return figure


@styled
def pass_costs(costs: Mapping[str, PassCost]) -> Figure:
    """Bytes (weights, KV) and FLOPs of several passes, one bar each."""
    figure, (left, right) = new_figure(10, 1.4 + 0.7 * len(costs), columns=2)
    for y, (name, cost) in enumerate(costs.items()):
        kv = cost.bytes - cost.weight_bytes
        left.barh(y, cost.weight_bytes, color=WEIGHTS, height=0.62)
        left.barh(y, kv, left=cost.weight_bytes, color=KV, height=0.62)
        right.barh(y, cost.flops, color=PREFILL if name.startswith("prefill") else DECODE, height=0.62)
        label(left, cost.bytes, y, si(cost.bytes, "B"))
        label(right, cost.flops, y, si(cost.flops, "FLOP"))
    for axes in (left, right):
        axes.set_yticks(range(len(costs)), list(costs) if axes is left else [""] * len(costs))
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.margins(x=0.36)
    first = next(iter(costs.values()))
    left.set_title("memory traffic")
    right.set_title("arithmetic")
    left.text(first.weight_bytes / 2, 0, "weights", color="white", ha="center", va="center", weight="bold")
    y, widest = max(enumerate(costs.values()), key=lambda item: item[1].bytes - item[1].weight_bytes)
    if widest.bytes > 1.2 * widest.weight_bytes:
        middle = (widest.weight_bytes + widest.bytes) / 2
        left.text(middle, y, "KV", color="white", ha="center", va="center", weight="bold")
    return figure


@styled
def request_timeline(metrics: RequestMetrics) -> Figure:
    """One request on a time axis: prefill until the first token, then one block per decode step."""
    figure, [axes] = new_figure(10, 2.3)
    times = np.array(metrics.token_times) - metrics.arrival
    axes.barh(0, times[0], color=PREFILL, height=0.5)
    steps = np.diff(times)
    for i, (start, width) in enumerate(zip(times, steps, strict=False)):
        axes.barh(0, width, left=start, color=DECODE, height=0.5, alpha=1 if i % 2 else 0.75)
    ttft, tpot = si(metrics.ttft, "s"), si(metrics.tpot, "s")
    label(axes, times[0] / 2, 0.25, f"TTFT {ttft}", PREFILL, dx=0, dy=12, ha="center", weight="bold")
    middle = (times[0] + times[-1]) / 2
    text = f"{len(steps)} decode steps, TPOT {tpot} each"
    label(axes, middle, -0.25, text, DECODE, dx=0, dy=-12, ha="center", weight="bold")
    axes.set_ylim(-0.65, 0.65)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("seconds since the request arrived")
    return figure


@styled
def decode_share(shares: Mapping[str, tuple[Sequence[int], Sequence[float]]], title: str = "") -> Figure:
    """Share of a request's time that goes to decode, against output tokens: {label: (tokens, share 0..1)}."""
    figure, [axes] = new_figure(9, 4.4)
    for i, (name, (tokens, share)) in enumerate(shares.items()):
        axes.plot(tokens, np.array(share) * 100, color=DECODE, ls=("-", "--", ":")[i % 3])
        side = {"dx": 12, "dy": -20} if i else {"dx": -12, "dy": 20}  # the first curve is named on its left
        middle = int(np.argmin(np.abs(np.array(share) - 0.5)))
        label(axes, tokens[middle], share[middle] * 100, name, INK, **side)
    axes.axhline(50, color=MUTED, lw=1)
    axes.set_xscale("log")
    axes.set_ylim(0, 103)
    axes.set_xlabel("output tokens")
    axes.set_ylabel("% of the time in decode")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_title(title)
    return figure


@styled
def gpu_bounds(times: Mapping[str, tuple[float, float]]) -> Figure:
    """Lower bounds per device: {name: (TTFT seconds, TPOT seconds)}, one pair of bars each."""
    figure, (left, right) = new_figure(10, 1.3 + 0.5 * len(times), columns=2)
    for y, (ttft, tpot) in enumerate(times.values()):
        left.barh(y, ttft, color=PREFILL, height=0.62)
        right.barh(y, tpot, color=DECODE, height=0.62)
        label(left, ttft, y, si(ttft, "s"))
        label(right, tpot, y, f"{si(tpot, 's')}  ({1 / tpot:,.0f} tokens/s)")
    for axes, text in ((left, "TTFT, at least"), (right, "TPOT at batch 1, at least")):
        axes.set_yticks(range(len(times)), list(times) if axes is left else [""] * len(times))
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.margins(x=0.35)
        axes.set_title(text)
    return figure


@styled
def intensity_of_decode(config: ModelConfig, machine: Machine, contexts: Sequence[int], name: str = "") -> Figure:
    """Intensity of a whole decode step against batch, one line per context; beyond n* no line reaches the ridge."""
    figure, [axes] = new_figure(9.5, 5)
    batches = np.unique(np.geomspace(1, 4096, 60).astype(int))
    limit = critical_context(config, machine)
    for context in contexts:
        values = [decode_cost(config, int(batch), context).intensity for batch in batches]
        color = COMPUTE if values[-1] >= machine.ridge else DECODE
        axes.plot(batches, values, color=color)
        label(axes, batches[-1], values[-1], f"{context:,} tokens", color)
    axes.axhline(machine.ridge, color=INK, lw=1.5)
    label(axes, 1, machine.ridge, f"ridge of {machine.name}: {machine.ridge:,.0f}", dx=4, dy=9)
    log2_x(axes, [1, 4, 16, 64, 256, 1024, 4096])
    log_y(axes)
    axes.set_xlim(1, 4096 * 4)
    axes.set_xlabel("sequences in the step (batch)")
    axes.set_ylabel("FLOP per byte of the whole step")
    axes.set_title(f"{name}: the ridge is out of reach beyond n* = {limit:,.0f} cached tokens")
    return figure


@styled
def cost_against_parameters(shapes: Sequence[ModelShape]) -> Figure:
    """FLOPs of one decoded token against total parameters; mixtures of experts are hollow, on their active ones."""
    figure, [axes] = new_figure(9, 4.6)
    reach = np.array([min(shape.params for shape in shapes) / 1.5, max(shape.params for shape in shapes) * 1.5])
    axes.plot(reach, 2 * reach, color=MUTED, ls=":", lw=1.5)
    label(axes, 3e9, 6e9, "2 FLOP per parameter", MUTED, dx=-10, dy=6)
    for shape in shapes:
        dense = shape.architecture is not None
        flops = 2 * (matmul_params(shape.config) if dense else shape.active_params)
        axes.plot(shape.params, flops, "o", color=DECODE, mfc=DECODE if dense else "white", mew=2)
        label(axes, shape.params, flops, shape.name, INK, dx=8, dy=-10, fontsize=10)
    axes.set_xscale("log")
    log_y(axes, "FLOP")
    axes.xaxis.set_major_formatter(lambda value, _: si(value))
    axes.tick_params(which="minor", length=0)
    axes.set_xlim(reach[0], reach[1] * 5)
    axes.set_xlabel("parameters")
    axes.set_ylabel("arithmetic per token")
    return figure


@styled
def roofline_setting(
    model: str = "Llama-3.1-8B",
    device: str = "H100",
    weights: str = "16 bit",
    kv: str = "16 bit",
    batch: int = 1,
    context: int = 4096,
) -> Figure:
    """Bounds on prefill (one prompt of `context` tokens) and decode of a model on a device, under the device's roof.

    Raises ModelError or CourseError where the model is not a dense decoder or the device's peak is not known.
    """
    shape, entry = facts.model(model), facts.device(device)
    machine, config = Machine.from_facts(entry), shape.config
    formats = FORMATS[weights], FORMATS[kv]
    decode, prefill = decode_cost(config, batch, context, *formats), prefill_cost(config, context, *formats)
    bounds = time_bound(prefill, machine), time_bound(decode, machine)
    points = [
        Point.bound(f"prefill of {context:,}", prefill, machine, PREFILL),
        Point.bound(f"decode, batch {batch:,}", decode, machine, DECODE),
    ]
    figure, [axes] = new_figure(9.5, 5.4)
    draw_roofline(axes, [machine], points, span=(0.3, 100_000))  # the same for all settings: points move, axes do not
    used = shape.params * formats[0] + batch * shape.kv_bytes(context, bytes_per_element=formats[1])
    fits = "" if used < entry.memory else ": does not fit"
    tpot = bounds[1].seconds
    axes.set_title(
        f"{model} on {machine.name}\n"
        f"TTFT ≥ {si(bounds[0].seconds, 's')} ({bounds[0].limit}-bound)    "
        f"TPOT ≥ {si(tpot, 's')} ({bounds[1].limit}-bound)\n"
        f"≤ {1 / tpot:,.0f} tokens/s a user, {batch / tpot:,.0f} in total    "
        f"weights and KV {si(used, 'B')} of {si(entry.memory, 'B')}{fits}",
        fontsize=12,
        weight="normal",
    )
    return figure
