"""Figures of notebook 04: perplexity by axis and by bits, the time of a step with a smaller cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.perf.kv_sweeps import AXES
from course_lib.perf.timing import Timing
from course_lib.plots.kv_windows import SINK
from course_lib.plots.style import INK, KV, KV_PALE, MUTED, label, log2_x, log_y, new_figure, si, styled

LEAST = 1e-3
TINT = {"float": INK, "16 bit": INK, "int8": KV, "fp8": SINK, "kivi2": MUTED}


@styled
def axis_costs(costs: Mapping[str, tuple[float, Mapping[tuple[str, str], float]]], bits: int) -> Figure:
    """Perplexity of the four ways to choose an axis for keys and values: {model: (without, {(keys, values): with})}."""
    figure, panels = new_figure(10.5, 3.7, columns=len(costs))
    for axes, (name, (plain, cost)) in zip(panels, costs.items(), strict=True):
        best = min(cost, key=cost.get)
        for x, values in enumerate(AXES):
            for y, keys in enumerate(AXES):
                chosen = (keys, values) == best
                axes.add_patch(Rectangle((x, y), 0.96, 0.94, fc=KV if chosen else KV_PALE))
                color = "white" if chosen else INK
                value = cost[keys, values]
                text = f"{value:.2f}\n{value / plain - 1:+.0%}"
                axes.text(x + 0.48, y + 0.47, text, ha="center", va="center", color=color, fontsize=14)
        axes.set_xlim(-0.02, 2)
        axes.set_ylim(2, -0.02)
        axes.set_xticks([0.48, 1.48], list(AXES))
        axes.set_yticks([0.47, 1.47], list(AXES) if axes is panels[0] else ["", ""])
        axes.grid(visible=False)
        axes.set_xlabel("values")
        axes.set_title(f"{name}: {plain:.2f} in float")
    panels[0].set_ylabel("keys")
    figure.suptitle(f"Perplexity with {bits} bits in groups of 32", x=0.01, ha="left", fontsize=12)
    return figure


@styled
def perplexity_by_bits(costs: Mapping[str, Mapping[str, tuple[float, float]]]) -> Figure:
    """Rise of the perplexity against the bits of an element: {model: {format: (bits, perplexity)}}, one being "float".

    A rise below LEAST, or a fall, is drawn there and written out.
    """
    figure, panels = new_figure(11.5, 5, columns=len(costs))
    for axes, (name, points) in zip(panels, costs.items(), strict=True):
        plain = points["float"][1]
        placed = []
        for kind, (bits, perplexity) in sorted(points.items(), key=lambda point: point[1][1], reverse=True):
            if kind == "float":
                continue
            rise = max(perplexity / plain - 1, LEAST)
            text = kind if rise > LEAST else f"{kind}: {perplexity / plain - 1:+.2%}"
            color = INK if kind.startswith("kivi") else SINK if kind.startswith("nuq") else KV
            axes.plot(bits, rise, "o", color=color)
            crowded = [y for x, y in placed if abs(x - bits) < 2.2 and y / rise < 1.5]
            y = min([rise, *(other / 1.5 for other in crowded)])
            placed.append((bits, y))
            axes.annotate(
                text, (bits, rise), (bits + 0.3, y), color=color, fontsize=10.5, va="center",
                arrowprops={"arrowstyle": "-", "color": MUTED, "lw": 0.6} if y < rise else None,
            )  # fmt: skip
        log_y(axes)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value * 100:g}%")
        low = min(y for _, y in placed)
        axes.set_ylim(low / 1.6, None)
        axes.set_xlim(2, 12)
        axes.set_xticks([3, 4, 5, 6, 7, 8, 9])
        axes.set_xlabel("bits per element, scales included")
        axes.set_title(f"{name}: {plain:.2f} in float", fontsize=12)
    panels[0].set_ylabel("rise of the perplexity (log scale)")
    return figure


@styled
def step_times(
    contexts: Sequence[int],
    times: Mapping[str, Sequence[Timing]],
    long: Sequence[int],
    bounds: Mapping[str, Sequence[float]],
    title: str,
) -> Figure:
    """Time of a decode step against the context: measured here by format (left), lower bounds in seconds (right)."""
    figure, (left, right) = new_figure(11, 4.6, columns=2)
    height = 0.0  # of the label below; labels keep a distance where curves end close together
    for name, timings in sorted(times.items(), key=lambda item: item[1][-1].median):
        medians = [timing.median for timing in timings]
        low, high = ([getattr(timing, p) for timing in timings] for p in ("p10", "p90"))
        left.fill_between(contexts, low, high, color=TINT[name], alpha=0.15, lw=0)
        left.plot(contexts, medians, color=TINT[name], marker="o", ms=5)
        height = max(medians[-1], 1.13 * height)
        label(left, contexts[-1], height, name, TINT[name], dx=8)
    for name, seconds in bounds.items():
        right.plot(long, seconds, color=TINT[name], ls="--")
        label(right, long[-1], seconds[-1], f"{name}: {si(seconds[-1], 's')}", TINT[name], dx=8)
    for axes, ticks in ((left, contexts), (right, long)):
        log2_x(axes, ticks)
        axes.set_xlim(ticks[0] * 0.9, ticks[-1] * (ticks[-1] / ticks[0]) ** 0.5)
        log_y(axes, "s")
        axes.set_xlabel("tokens in the cache of each sequence")
    left.set_ylabel("time of a step (log scale)")
    left.set_title("measured, this CPU")
    right.set_title(title, fontsize=12)
    return figure
