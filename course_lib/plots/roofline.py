"""The roofline: attainable FLOP/s against intensity, for one machine or several, with passes as points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from course_lib.perf.counts import PassCost
from course_lib.perf.roofline import Machine
from course_lib.perf.timing import Timing
from course_lib.plots.style import COMPUTE, INK, MEMORY, PREFILL, label, log_y, new_figure, si, styled


@dataclass(frozen=True)
class Point:
    """One pass on the roofline: its FLOP/byte and the FLOP/s that it reached, or could reach."""

    label: str
    intensity: float
    flops: float
    color: str
    spread: tuple[float, float] | None = None  # FLOP/s at p90 and p10 of the time; None: computed, drawn hollow

    @classmethod
    def measured(cls, text: str, flops: float, nbytes: float, timing: Timing, color: str) -> Point:
        """Work of `flops` and `nbytes` that took the timing's median, with its spread."""
        return cls(text, flops / nbytes, flops / timing.median, color, (flops / timing.p90, flops / timing.p10))

    @classmethod
    def bound(cls, text: str, cost: PassCost, machine: Machine, color: str) -> Point:
        """The best that a pass of this cost can reach on the machine."""
        return cls(text, cost.intensity, machine.attainable(cost.intensity), color)


@styled
def roofline(
    machines: Sequence[Machine],
    points: Sequence[Point] = (),
    title: str = "",
    span: tuple[float, float] | None = None,
) -> Figure:
    """One roof per machine: orange where memory sets the limit, blue where arithmetic does; ridge points as diamonds.

    Filled points are measured, with p10 to p90 as a line; hollow ones are computed. span: of the intensity axis, where
    it shall not follow the points.
    """
    figure, [axes] = new_figure(9.5, 5.2)
    draw_roofline(axes, machines, points, span)
    axes.set_title(title)
    return figure


def draw_roofline(
    axes: Axes,
    machines: Sequence[Machine],
    points: Sequence[Point] = (),
    span: tuple[float, float] | None = None,
) -> None:
    """Draw roofs and points on given axes; call it from a styled function."""
    at = [point.intensity for point in points] or [min(machine.ridge for machine in machines) / 30]
    low, high = span or (min(at) / 8, max([*at, *(machine.ridge for machine in machines)]) * 4)
    x = np.geomspace(low, high, 400)
    for machine in machines:
        roof = np.array([machine.attainable(i) for i in x])
        below = x <= machine.ridge
        axes.plot(x[below], roof[below], color=MEMORY, zorder=1.5)
        axes.plot(x[~below], roof[~below], color=COMPUTE, zorder=1.5)
        axes.plot(machine.ridge, machine.flops, marker="D", ms=6, color=INK)
    for point in points:
        face = "white" if point.spread is None else point.color
        if point.spread:
            axes.plot([point.intensity] * 2, point.spread, color=point.color, lw=1.2, alpha=0.6)
        axes.plot(point.intensity, point.flops, "o", color=point.color, mfc=face, mew=2, zorder=4)
        # Prefill above and to the left, decode below and to the right: the two meet where intensities are equal.
        side = {"dx": -8, "dy": 9} if point.color == PREFILL else {"dx": 8, "dy": -11}
        label(axes, point.intensity, point.flops, point.label, point.color, **side)
    axes.set_xscale("log")
    log_y(axes)
    axes.set_xlim(low, high)
    roofs = [machine.attainable(low) for machine in machines]
    heights = [flops for point in points for flops in (point.flops, *(point.spread or ()))]
    axes.set_ylim(
        min([*roofs, *(flops / 1.5 for flops in heights)]), 2.2 * max([*heights, *(m.flops for m in machines)])
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(which="minor", length=0)
    axes.set_xlabel("intensity: FLOP per byte of memory traffic")
    axes.set_ylabel("FLOP/s")
    _name_roofs(axes, machines, at, low)
    highest = max(machines, key=lambda machine: machine.flops)
    text = f"compute: {si(highest.flops, 'FLOP/s')}" if len(machines) == 1 else "bound by compute"
    label(axes, high, highest.flops, text, COMPUTE, dx=-4, dy=24, weight="bold")


def _name_roofs(axes: Axes, machines: Sequence[Machine], at: Sequence[float], low: float) -> None:
    """Bandwidth along each slope, ridge over each diamond, moved where two of them would touch."""
    axes.figure.draw_without_rendering()  # the layout decides the angle at which the slopes are drawn
    (x0, y0), (x1, y1) = axes.transData.transform([(1, 1e9), (10, 1e10)])
    angle = np.degrees(np.arctan2(y1 - y0, x1 - x0))
    alone, moved, previous = len(machines) == 1, False, 0.0
    for machine in sorted(machines, key=lambda machine: machine.bandwidth):
        # A slope closer than a line of text is high to the one below it carries its name further to the right.
        moved = machine.bandwidth < 1.8 * previous and not moved
        previous = machine.bandwidth
        where = _free_stretch(machine, at, low) * (7 if moved else 1)
        text = f"{'memory' if alone else machine.name}: {si(machine.bandwidth, 'B/s')}"
        how = {"rotation": angle, "rotation_mode": "anchor", "va": "bottom", "ha": "left", "fontsize": 11 - (not alone)}
        label(axes, where, machine.attainable(where), text, MEMORY, dx=-1, dy=3, weight="bold", **how)
        beside = [
            other.ridge for other in machines if other is not machine and 0.8 < other.flops / machine.flops < 1.25
        ]
        side = "center" if not beside else "right" if machine.ridge < min(beside) else "left"
        label(axes, machine.ridge, machine.flops, f"{machine.ridge:,.3g}", dx=0, dy=11, ha=side)


def _free_stretch(machine: Machine, at: Sequence[float], low: float) -> float:
    """Where on the slope to start its name: left of the first point or right of the last, whichever has more room."""
    below = [intensity for intensity in at if intensity < machine.ridge]
    if not below or min(below) / low >= machine.ridge / max(below):
        return low * 1.3
    return max(below) * 1.5
