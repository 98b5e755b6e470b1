"""Figures of notebook 03: what fewer KV heads cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from course_lib.plots.style import INK, KV, MUTED, WEIGHTS, label, log2_x, new_figure, styled


def perplexities(runs: Sequence[Mapping], how: str, share: float | None = None) -> dict[int, float]:
    """{KV heads: perplexity, the mean over seeds} of the runs of one kind, most heads first.

    runs: those of `facts.uptraining()`. share: of the twin's steps, spent after the merge; None for "from scratch".
    """
    chosen = [run for run in runs if run["how"] == how and run.get("share") == share]
    heads = sorted({run["kv_heads"] for run in chosen}, reverse=True)
    return {k: mean(run["perplexity"] for run in chosen if run["kv_heads"] == k) for k in heads}


@styled
def heads_and_quality(runs: Sequence[Mapping]) -> Figure:
    """Perplexity against KV heads: merged by their mean, then trained for each share, and trained from scratch.

    runs: those of `facts.uptraining()`.
    """
    shares = sorted({run["share"] for run in runs if run["how"] == "mean"})
    kept, *fewer = perplexities(runs, "mean", 0.0).items()
    heads = [kept[0], *(k for k, _ in fewer)]
    figure, [axes] = new_figure(9.5, 4.8)
    axes.axhline(kept[1], color=MUTED, lw=1.2, ls="--")
    label(axes, heads[-1], kept[1], f"all {kept[0]} kept: {kept[1]:.1f}", MUTED, dx=8, dy=-9)
    for share in shares:
        curve = perplexities(runs, "mean", share)
        color, name = (WEIGHTS, f"+{share:.0%} training") if share else (KV, "merged")
        strength = 0.4 + 0.6 * share / shares[-1] if share else 1
        axes.plot(curve.keys(), curve.values(), color=color, marker="o", alpha=strength)
        label(axes, heads[-1], curve[heads[-1]], name, color, dx=8, weight="bold" if share in (0, shares[-1]) else None)
    if scratch := perplexities(runs, "from scratch"):
        axes.plot(scratch.keys(), scratch.values(), color=INK, marker="s", ls=":")
        label(axes, min(scratch), scratch[min(scratch)], "from scratch", INK, dx=8)
    log2_x(axes, heads)
    axes.set_xlim(heads[0] * 1.15, heads[-1] / 1.8)  # fewer heads to the right
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0.88 * kept[1], None)
    axes.set_xlabel("KV heads, K'")
    axes.set_ylabel("perplexity, held-out text")
    axes.set_title("Quality against KV heads")
    return figure
