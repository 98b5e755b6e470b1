"""Figures of notebook 03: the cache of real models, by their KV heads and by their windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from course_lib.facts import ModelShape
from course_lib.perf.redesign import shape_with_kv_heads
from course_lib.plots.style import KV, MUTED, label, log2_x, log_y, new_figure, styled


@styled
def every_model(shapes: Sequence[ModelShape]) -> Figure:
    """Cache bytes of a token for each model (filled), and with a key and a value for every query head (hollow)."""
    figure, [axes] = new_figure(10.5, 1.2 + 0.27 * len(shapes))
    for y, shape in enumerate(shapes):
        kept, whole = shape.kv_bytes_per_token(), shape_with_kv_heads(shape, shape.heads).kv_bytes_per_token()
        share = f", 1/{whole / kept:,.3g}" if whole > kept else ""
        if share:
            axes.plot([kept, whole], [y, y], color=MUTED, lw=1)
            axes.plot(whole, y, "o", color=MUTED, mfc="white", mew=1.5, ms=6)
        axes.plot(kept, y, "o", color=KV)
        label(axes, max(kept, whole), y, f"{kept / 1024:,.4g} KiB{share}", dx=9, fontsize=10)
    names = [f"{shape.name}  ({_attention(shape)})" for shape in shapes]
    axes.set_yticks(range(len(shapes)), names, fontsize=10)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1024:,.0f}"))
    axes.tick_params(which="minor", length=0)
    axes.set_xlim(8 * 1024, 32 * 1024**2)
    axes.set_xlabel("KiB per token, 16 bit (log scale)")
    axes.set_title("Filled: what a token leaves in the cache. Hollow: with K = H")
    return figure


def _attention(shape: ModelShape) -> str:
    """H and what is shared, and where there are windows."""
    shared = "MLA" if shape.mla else f"K {shape.kv_heads}"
    window = min((window for window in shape.windows if window), default=None)
    return f"H {shape.heads}, {shared}" + (f", w {window:,}" if window else "")


@styled
def cache_by_length(
    lengths: Sequence[int], kept: Mapping[str, Sequence[float]], whole: Mapping[str, Sequence[float]]
) -> Figure:
    """Cache of one sequence against its length: {name: bytes}. Dashed: where nothing that left a window is freed."""
    figure, [axes] = new_figure(9.5, 4.8)
    for name, sizes in kept.items():
        axes.plot(lengths, sizes, color=KV)
        label(axes, lengths[-1], sizes[-1], name, KV, dx=8)
        if name in whole:
            axes.plot(lengths, whole[name], color=MUTED, ls="--", lw=1.5)
    widest = max(whole, key=lambda name: whole[name][-1])
    i = len(lengths) // 2
    label(axes, lengths[i], whole[widest][i], "dashed: without freeing", MUTED, dx=-8, dy=8)
    log2_x(axes, lengths[::2])
    axes.tick_params(axis="x", labelrotation=30)
    log_y(axes, "B")
    axes.set_xlim(lengths[0], lengths[-1] * 8)
    axes.set_xlabel("tokens of the sequence, n")
    axes.set_ylabel("cache, 16 bit")
    axes.set_title("Windows bend the line: layers keep min(n, w)")
    return figure
