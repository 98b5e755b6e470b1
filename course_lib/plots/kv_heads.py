"""Figures of notebook 03: what fewer KV heads cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

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
    shares = sorted({run["share"] for run in runs if run["how"] == "mean" and run["share"]})
    before, after = perplexities(runs, "mean", 0.0), perplexities(runs, "mean", shares[-1])
    heads = list(before)
    figure, (left, right) = new_figure(11, 4.4, columns=2)
    left.plot(heads, before.values(), color=KV, marker="o")
    label(left, heads[-1], before[heads[-1]], "merged", KV, dx=8, weight="bold")
    left.plot(heads, after.values(), color=WEIGHTS, marker="o")
    label(left, heads[-1], after[heads[-1]], f"+{shares[-1]:.0%} training", WEIGHTS, dx=8, weight="bold")
    for share in shares:
        curve = perplexities(runs, "mean", share)
        right.plot(heads, curve.values(), color=WEIGHTS, marker="o", alpha=0.4 + 0.6 * share / shares[-1])
        label(right, heads[-1], curve[heads[-1]], f"+{share:.0%}", WEIGHTS, dx=8)
    if scratch := perplexities(runs, "from scratch"):
        right.plot(scratch.keys(), scratch.values(), color=INK, marker="s", ls=":")
        label(right, heads[-1], scratch[heads[-1]], "from scratch", INK, dx=8)
    for axes in (left, right):
        axes.axhline(before[heads[0]], color=MUTED, lw=1.2, ls="--")
        log2_x(axes, heads)
        axes.set_xlim(heads[0] * 1.25, heads[-1] / 2.2)  # fewer heads to the right
        axes.set_xlabel("KV heads, K'")
    label(left, heads[0], before[heads[0]], f"all {heads[0]} kept: {before[heads[0]]:.1f}", MUTED, dx=4, dy=-10)
    left.set_yscale("log")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter(ScalarFormatter())
    left.yaxis.set_minor_formatter(NullFormatter())
    left.set_ylabel("perplexity, held-out text")
    left.set_title("before and after further training")
    right.set_title("after it, larger")
    return figure
