"""The house style of every figure: one font size, one set of colours, labels at the thing instead of legends.

The colours are from the Okabe-Ito palette, told apart with all common forms of colour blindness and in grey print by
their lightness. The same colour means the same thing in the whole course.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from PIL import Image

PREFILL = "#0072B2"
DECODE = "#D55E00"
WEIGHTS = "#009E73"
KV = "#CC79A7"
KV_PALE = "#F0D6E4"  # KV that is only read, or room kept for it
COMPUTE = "#56B4E9"  # bound by arithmetic, the lighter relative of prefill
MEMORY = "#E69F00"  # bound by memory, the lighter relative of decode
INK = "#222222"
MUTED = "#767676"

DPI = 100
STYLE = {
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 12,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 2.2,
    "lines.markersize": 8,
    "text.color": INK,
    "figure.dpi": DPI,
    "figure.facecolor": "white",
}
# Decorator of every function that draws: matplotlib reads most settings when an artist is made, not when it is drawn.
styled = mpl.rc_context(STYLE)
HALO = [withStroke(linewidth=3, foreground="white")]  # keeps a label readable where it crosses a line


class Picture(Figure):
    """A figure that a notebook shows when it is the last line of a cell, without pyplot and its global state."""

    def _repr_png_(self) -> bytes:
        return png(self)


@styled
def new_figure(width: float = 8.5, height: float = 4.5, columns: int = 1) -> tuple[Picture, list[Axes]]:
    """An empty figure in the house style and its axes, side by side. Sizes in inches."""
    figure = Picture(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


@styled
def new_stack(width: float, height: float, rows: Sequence[float]) -> tuple[Picture, list[Axes]]:
    """As `new_figure`, with axes below each other that share x; rows: their heights relative to each other."""
    figure = Picture(figsize=(width, height), layout="constrained")
    panels = figure.subplots(len(rows), 1, squeeze=False, sharex=True, height_ratios=list(rows))
    return figure, list(panels[:, 0])


@styled
def png(figure: Figure) -> bytes:
    """The figure as PNG bytes with a palette: a third of the size, and equal figures give equal bytes."""
    buffer, small = io.BytesIO(), io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    Image.open(buffer).convert("RGB").quantize(128).save(small, format="png", optimize=True)
    return small.getvalue()


def label(axes: Axes, x: float, y: float, text: str, color: str = INK, dx: float = 6, dy: float = 0, **how) -> None:
    """Write beside the point (x, y) of the data, shifted by (dx, dy) points; horizontally aligned away from it."""
    how = {"ha": "left" if dx >= 0 else "right", "va": "center", "fontsize": 11, "path_effects": HALO} | how
    axes.annotate(text, (x, y), xytext=(dx, dy), textcoords="offset points", color=color, **how)


def log2_x(axes: Axes, values: Sequence[int]) -> None:
    """A logarithmic x axis with a tick at each of the given numbers."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.minorticks_off()


def log_y(axes: Axes, unit: str = "") -> None:
    """A logarithmic y axis with ticks at 1, 2 and 5 times powers of ten, written as '20 G' and a unit."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: si(value, unit)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="y", which="minor", length=0)


def si(value: float, unit: str = "", digits: int = 3) -> str:
    """A number with an SI prefix: 2.04e12 and 'B/s' give '2.04 TB/s', 0.0052 and 's' give '5.2 ms'."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m")):
        if abs(value) >= size * 0.99999:
            return f"{value / size:.{digits}g} {prefix}{unit}".rstrip()
    return f"{value * 1e6:.{digits}g} µ{unit}" if value else f"0 {unit}".rstrip()
