"""Figures of notebook A1 that need no trace: bytes of a fusion, online softmax, what a compiler made of a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from course_lib.plots.style import (
    COMPUTE,
    DECODE,
    INK,
    KV,
    MEMORY,
    MUTED,
    label,
    new_figure,
    si,
    styled,
)

if TYPE_CHECKING:
    from course_kernels.inspection import Report

MOST_REGISTERS = 255  # of a thread: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"


@styled
def bytes_moved(parts: Mapping[str, Mapping[str, float]], title: str = "") -> Figure:
    """A bar per way of computing the same, in pieces: way -> {what moves: bytes}."""
    figure, [axes] = new_figure(10, 1.3 + 0.7 * len(parts))
    most = max(sum(pieces.values()) for pieces in parts.values())
    for y, pieces in enumerate(parts.values()):
        left = 0.0
        for i, (name, size) in enumerate(pieces.items()):
            axes.barh(y, size, left=left, height=0.62, color=MEMORY, alpha=1 - 0.35 * (i % 2), ec="white")
            axes.text(left + size / 2, y, name, ha="center", va="center", fontsize=10)
            left += size
        label(axes, left, y, f"{si(left, 'B')}, {left / most:.0%}")
    axes.set_yticks(range(len(parts)), list(parts))
    axes.set_ylim(len(parts) - 0.5, -0.5)
    axes.set_xlim(0, 1.25 * most)
    axes.xaxis.set_major_formatter(lambda value, _: si(value, "B"))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("bytes between the GPU's memory and its cores")
    axes.set_title(title)
    return figure


@styled
def online_softmax(
    scores: Sequence[float], tile: int, peaks: Sequence[float], results: Mapping[str, Sequence[float]], exact: float
) -> Figure:
    """Left the scores and the peak after each tile, right a result after each tile, by way of computing it.

    scores: of all keys; peaks: one per tile; results: way -> out / total of one element after each tile; exact: its
    value by softmax over all keys.
    """
    figure, [left, right] = new_figure(11.5, 4.3, columns=2)
    keys, tiles = np.arange(len(scores)), len(peaks)
    left.bar(keys, scores, width=0.8, color=KV)
    for i, peak in enumerate(peaks):
        left.plot([i * tile - 0.5, (i + 1) * tile - 0.5], [peak, peak], color=INK)
        left.axvline((i + 1) * tile - 0.5, color=MUTED, lw=0.8, ls=":")
        label(left, (i + 0.5) * tile - 0.5, peak, f"m = {peak:.1f}", dx=0, dy=9, ha="center")
    left.set_ylim(min(0, min(scores)) - 0.5, 1.2 * max(scores))
    left.set_xlabel(f"key (dotted: tiles of {tile})")
    left.set_ylabel("score s")
    left.set_title("peak m after each tile")
    for (way, values), color in zip(results.items(), (DECODE, MUTED, COMPUTE), strict=False):
        right.plot(range(1, tiles + 1), values, "o-", color=color)
        label(right, tiles, values[-1], f"{way}: {values[-1]:.3f}", color, dy=11)
    right.axhline(exact, color=INK, lw=1, ls="--")
    right.margins(y=0.12)
    right.set_xticks(range(1, tiles + 1))
    right.set_xlim(0.6, 1.55 * tiles)
    right.set_xlabel(f"tiles done (dashed: softmax over all keys, {exact:.3f})")
    right.set_ylabel("o / l, first element")
    right.set_title("the result so far")
    return figure


@styled
def warps(reports: Mapping[str, Report], needed: Mapping[str, float]) -> Figure:
    """Left registers of a thread and what was spilled, right the warps that a multiprocessor holds, a bar per variant.

    needed: variant -> registers of a thread for what it must keep, as computed by hand (a white line in the bar).
    """
    figure, [left, right] = new_figure(11.5, 1.6 + 0.62 * len(reports), columns=2)
    for y, (name, report) in enumerate(reports.items()):
        spilled = report.spilled / 4  # registers are 32 bits
        left.barh(y, report.registers, color=COMPUTE, height=0.6)
        left.barh(y, spilled, left=report.registers, color=DECODE, height=0.6)
        left.plot([needed[name]] * 2, [y - 0.3, y + 0.3], color="white", lw=2.5)
        text = f"{report.registers}, {report.spilled} bytes spilled" if spilled else f"{report.registers}, no spills"
        label(left, report.registers + spilled, y, text)
        right.barh(y, report.resident.warps, color=COMPUTE, height=0.6)
        blocks, limit = report.resident.blocks, report.resident.limit
        text = f"{blocks} {'program' if blocks == 1 else 'programs'}, bound by {limit}"
        label(right, report.resident.warps, y, text)
    left.axvline(MOST_REGISTERS, color=INK, lw=1, ls="--")
    label(left, MOST_REGISTERS, -0.55, f"a thread has at most {MOST_REGISTERS}", dx=-4)
    slots = round(report.resident.warps / report.resident.share)
    left.set_yticks(range(len(reports)), list(reports))
    right.set_yticks(range(len(reports)), [])
    for axes in (left, right):
        axes.set_ylim(len(reports) - 0.5, -0.8)
        axes.grid(axis="y", visible=False)
    left.set_xlim(0, 520)
    right.set_xlim(0, slots)
    left.set_xlabel("32-bit registers of a thread (white line: computed need)")
    right.set_xlabel(f"warps on a multiprocessor, of {slots} slots")
    return figure
