"""Figures of notebook 04, first part: which layers have a window, the slots of a ring, what a window costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter
from torch import Tensor

from course_lib.facts import ModelShape
from course_lib.plots.style import DECODE, INK, KV, KV_PALE, MUTED, label, log2_x, new_figure, styled

SINK = "#7A3F63"  # KV that stays for ever, the darkest of its colours


@styled
def which_layers(shapes: Sequence[ModelShape], tokens: int) -> Figure:
    """The layers of each model, full where they keep every token, pale with a window; at the right, cache bytes."""
    figure, [axes] = new_figure(10.5, 1.6 + 0.42 * len(shapes))
    deepest = max(shape.layers for shape in shapes)
    for y, shape in enumerate(shapes):
        for layer, window in enumerate(shape.layer_windows):
            axes.add_patch(Rectangle((layer, y - 0.33), 0.86, 0.66, fc=KV_PALE if window else KV))
        kept, whole = (shape.kv_bytes(tokens, ignore_windows=ignore) / 1e9 for ignore in (False, True))
        text = f"{kept:.2f} GB" + ("" if kept == whole else f", not {whole:.2f}")
        label(axes, deepest + 1, y, text, KV if kept < whole else INK, dx=0)
    names = []
    for shape in shapes:
        widths = sorted({window for window in shape.layer_windows if window})
        names.append(f"{shape.name}  " + (f"w {widths[0]:,}" if widths else "no window"))
    axes.set_yticks(range(len(shapes)), names)
    axes.set_ylim(len(shapes) - 0.4, -0.8)
    axes.set_xlim(0, deepest * 1.32)
    axes.set_xticks([0, deepest // 2, deepest])
    axes.grid(visible=False)
    axes.set_xlabel(f"layer; at the right, the cache of {tokens:,} tokens in 16 bit")
    axes.set_title("Full: the layer keeps every token. Pale: the last w")
    return figure


@styled
def ring_slots(positions: Sequence[Tensor], sinks: int) -> Figure:
    """What lies in each slot after every token: positions[t], [slots], of the key in a slot, -1 where it is empty."""
    steps, slots = len(positions), len(positions[-1])
    figure, [axes] = new_figure(8.2, 1.2 + 0.34 * steps)
    for t, row in enumerate(positions):
        for slot, position in enumerate(row.tolist()):
            if position < 0:
                continue
            new = position == t
            color = SINK if slot < sinks else DECODE if new else KV_PALE
            axes.add_patch(Rectangle((slot, t - 0.42), 0.92, 0.84, fc=color))
            ink = INK if color == KV_PALE else "white"
            axes.text(slot + 0.46, t, position, ha="center", va="center", color=ink, fontsize=11)
    axes.set_xlim(-0.1, slots + 3.4)
    axes.set_ylim(steps - 0.4, -0.7)
    axes.set_yticks(range(steps), [str(t) for t in range(steps)])
    axes.set_xticks([slot + 0.46 for slot in range(slots)], [str(slot) for slot in range(slots)])
    axes.grid(visible=False)
    axes.set_ylabel("token that arrives, p")
    axes.set_xlabel(f"slot: {sinks} for sinks, then a ring of {slots - sinks}")
    label(axes, slots, 0.4, "sinks: stay", SINK, dx=4)
    label(axes, slots, slots, "new: takes the place of\nthe one it pushes out", DECODE, dx=4)
    label(axes, slots, steps - 2, "still in the window", INK, dx=4)
    axes.set_title("Position of the key in each slot")
    return figure


@styled
def window_cost(costs: Mapping[str, tuple[float, Mapping[tuple[int, int], float]]]) -> Figure:
    """Perplexity against the window, without a sink, with one and with four; for each model (that of no window, costs).

    costs: {model: (perplexity, {(window, sinks): perplexity})}.
    """
    figure, panels = new_figure(11, 4.6, columns=len(costs))
    for axes, (name, (plain, cost)) in zip(panels, costs.items(), strict=True):
        visible = sorted({window for window, _ in cost})
        for sinks, color, marker in ((0, INK, "o"), (1, SINK, "s"), (4, KV, "^")):
            values = [cost[window, sinks] for window in visible]
            axes.plot(visible, values, color=color, marker=marker, ms=6, ls="--" if sinks == 4 else "-")
        worst = max(cost.values()) > 2 * plain
        label(axes, visible[0], cost[visible[0], 0], "window alone", INK, dx=10, dy=8 if worst else 12)
        label(axes, visible[0], cost[visible[0], 1], "with 1 or 4 sinks", SINK, dx=10, dy=8 if worst else -26)
        axes.axhline(plain, color=MUTED, lw=1.2, ls=":")
        label(axes, visible[0], plain, f"no window: {plain:.2f}", MUTED, dx=0, dy=-9)
        log2_x(axes, visible)
        _plain_log_y(axes, worst, plain, max(cost.values()))
        axes.set_xlabel("window, tokens")
        axes.set_title(name)
    panels[0].set_ylabel("perplexity (log scale)")
    return figure


@styled
def attention_places(places: Mapping[str, Tensor], sinks: int, window: int) -> Figure:
    """Where attention lies in each layer: {model: [L, 2], on the first tokens and on the last ones}."""
    figure, panels = new_figure(11, 4.2, columns=len(places))
    for axes, (name, mass) in zip(panels, places.items(), strict=True):
        layers = np.arange(len(mass))
        first, near = mass.float().numpy().T
        edge = {"width": 1, "ec": "white", "lw": 0.6}
        axes.bar(layers, first, color=SINK, **edge)
        axes.bar(layers, near, bottom=first, color=KV, **edge)
        axes.bar(layers, 1 - first - near, bottom=first + near, color=KV_PALE, **edge)
        i = int(len(layers) * 0.62)
        inside = {"ha": "center", "color": "white", "weight": "bold", "fontsize": 10, "path_effects": []}
        label(axes, i, first[i] + near[i] / 2, f"the last {window}", dx=0, **inside)
        if first[i] > 0.1:
            label(axes, i, first[i] / 2, f"the first {sinks}", dx=0, **inside)
        j = int(len(layers) * 0.15)
        label(axes, j, (1 + first[j] + near[j]) / 2, "all between", INK, dx=0, ha="center")
        axes.set_ylim(0, 1)
        axes.set_xticks([0, len(layers) - 1])
        axes.grid(axis="x", visible=False)
        axes.set_xlabel("layer")
        axes.set_title(f"{name}: first {sinks} tokens {first.mean():.1%}")
    panels[0].set_ylabel("share of attention")
    return figure


@styled
def trimmed_chunks(chunks: Sequence[int], right: Sequence[float], trimmed: Sequence[float]) -> Figure:
    """Perplexity against the tokens of a pass, with the ring's order and with the window cut before attending."""
    figure, [axes] = new_figure(8.5, 4)
    axes.plot(chunks, trimmed, color=INK, marker="o")
    axes.plot(chunks, right, color=KV, marker="o")
    label(axes, chunks[-1], trimmed[-1], "trimmed before\nattending")
    label(axes, chunks[-1], right[-1], "attended, then\ntrimmed", KV)
    log2_x(axes, chunks)
    axes.set_xlim(chunks[0] * 0.85, chunks[-1] * 2.2)
    _plain_log_y(axes, max(trimmed) > 2 * min(right), min(right), max(trimmed))
    axes.set_xlabel("tokens of a pass")
    axes.set_ylabel("perplexity")
    axes.set_title("The same window in passes of several lengths")
    return figure


def _plain_log_y(axes: Axes, wide: bool, low: float, high: float) -> None:
    """A log axis with plain numbers; wide: the values span more than a factor of two."""
    axes.set_yscale("log")
    axes.set_ylim(low / (1.4 if wide else 1.03), high * (1.4 if wide else 1.02))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if wide else tuple(np.arange(1, 10, 0.05))))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="y", which="minor", length=0)
