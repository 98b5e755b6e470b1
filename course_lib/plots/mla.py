"""Figures of notebook 03, second half: the two forms of latent attention, what they store and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from course_lib.perf.timing import Timing
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
    log_y,
    new_figure,
    styled,
)

FORM_COLOURS = {"plain": PREFILL, "absorbed": DECODE}  # each has the colour of the phase that it is made for
# Boxes: name -> (x, y, text, fill, ink). Arrows lead from one to the next.
PLAIN = {
    "cache": (0, 0, "cache\n[n, r + p]", KV, "white"),
    "expand": (1.6, 0, "$W_{UK}, W_{UV}$", WEIGHTS, "white"),
    "heads": (3.2, 0, "k, v of all H\n[n, H, ...]", KV_PALE, INK),
    "queries": (4.8, 1, "queries\n[H, a + p]", "white", INK),
    "attend": (4.8, 0, "attend", PREFILL, "white"),
    "out": (6.4, 0, "out\n[H, v]", "white", INK),
}
ABSORBED = {
    "cache": (0, 0, "cache\n[n, r + p]", KV, "white"),
    "queries": (1.6, 1, "queries\n[H, a + p]", "white", INK),
    "absorb": (3.2, 1, "$W_{UK}^T$", WEIGHTS, "white"),
    "attend": (3.2, 0, "attend", DECODE, "white"),
    "expand": (4.8, 0, "$W_{UV}$", WEIGHTS, "white"),
    "out": (6.4, 0, "out\n[H, v]", "white", INK),
}
PLAIN_ARROWS = ("cache expand", "expand heads", "heads attend", "queries attend", "attend out")
ABSORBED_ARROWS = ("cache attend", "queries absorb", "absorb attend", "attend expand", "expand out")
BOX = (1.24, 0.54)  # width and height


@styled
def two_forms() -> Figure:
    """The order of work in the plain form (left) and in the absorbed one: where the two matrices act."""
    figure, (left, right) = new_figure(11, 2.6, columns=2)
    _flow(left, PLAIN, PLAIN_ARROWS)
    _flow(right, ABSORBED, ABSORBED_ARROWS)
    left.set_title("plain: every latent is expanded", fontsize=12)
    right.set_title("absorbed: the query goes to the latents", fontsize=12)
    return figure


def _flow(axes: Axes, boxes: Mapping[str, tuple[float, float, str, str, str]], arrows: Sequence[str]) -> None:
    width, height = BOX
    for arrow in arrows:
        (x0, y0), (x1, y1) = (boxes[name][:2] for name in arrow.split())
        if y0 == y1:
            x0, x1 = x0 + width / 2, x1 - width / 2
        else:
            y0, y1 = y0 - height / 2, y1 + height / 2
        axes.annotate(
            "", (x1, y1), (x0, y0), arrowprops={"arrowstyle": "->", "color": MUTED, "shrinkA": 2, "shrinkB": 2}
        )
    for x, y, text, fill, ink in boxes.values():
        edge = MUTED if fill == "white" else "none"
        shape = {"boxstyle": "round,pad=0.02,rounding_size=0.08", "fc": fill, "ec": edge}
        axes.add_patch(FancyBboxPatch((x - width / 2, y - height / 2), width, height, **shape))
        axes.text(x, y, text, ha="center", va="center", color=ink, fontsize=9.5)
    axes.set_xlim(-0.75, 7.15)
    axes.set_ylim(-0.45, 1.4)
    axes.axis("off")


@styled
def entries(sizes: Mapping[str, int], title: str) -> Figure:
    """Numbers that a token leaves in the cache of one layer, a bar for each kind of attention: {name: numbers}."""
    figure, [axes] = new_figure(9.5, 1.3 + 0.42 * len(sizes))
    for y, size in enumerate(sizes.values()):
        axes.barh(y, size, color=KV, height=0.62)
        label(axes, size, y, f"{size:,}", KV, weight="bold")
    axes.set_yticks(range(len(sizes)), list(sizes))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(right=1.12 * max(sizes.values()))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("numbers in one layer's cache, per token")
    axes.set_title(title)
    return figure


@styled
def work_of_forms(
    new: Sequence[int],
    flops: Mapping[str, Sequence[float]],
    timings: Mapping[str, Sequence[Timing]],
    crossing: float,
    title: str,
) -> Figure:
    """FLOPs of both forms against the new tokens of a pass (left), and measured times (right). {form: for each new}.

    crossing: the new tokens at which their FLOPs are equal.
    """
    figure, (left, right) = new_figure(11, 4.2, columns=2)
    for form, color in FORM_COLOURS.items():
        beside = {"dx": 4, "dy": 12} if form == "plain" else {"dx": 14, "dy": -3}
        left.plot(new, flops[form], color=color)
        label(left, new[0], flops[form][0], form, color, weight="bold", **beside)
        median = [timing.median for timing in timings[form]]
        low = [timing.median - timing.p10 for timing in timings[form]]
        high = [timing.p90 - timing.median for timing in timings[form]]
        right.errorbar(new, median, yerr=[low, high], color=color, marker="o", capsize=4)
        label(right, new[0], median[0], form, color, weight="bold", **beside)
    for axes in (left, right):
        axes.axvline(crossing, color=INK, lw=1, ls=":")
        log2_x(axes, new[::2])
        axes.set_xlabel("new tokens in the pass")
    label(left, crossing, min(flops["absorbed"]), f"equal at {crossing:,.0f}", dx=-4)
    log_y(left, "FLOP")
    log_y(right, "s")
    left.set_title(title)
    right.set_title("measured here")
    return figure
