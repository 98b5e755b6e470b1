"""The explorer of notebook A1: paged decode attention as programs on the multiprocessors of a GPU.

The division of the work is that of `course_kernels.triton.decode_attention`; a test holds it against traced loads. Time
is counted in tiles: a model of who waits for whom, not of a GPU's speed.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.plots.block_map import SEQUENCES
from course_lib.plots.style import INK, KV, KV_PALE, MUTED, Picture, label, si, styled

SMS = 132  # multiprocessors of an H100 SXM and of an H200: NVIDIA H100 Tensor Core GPU Architecture, white paper
HEAD_DIM, GROUP, ELEMENT = 128, 4, 2  # of Llama-3.1-8B, as is K = 8: d, query heads of a KV head, bytes of float16
LENGTHS = ("equal", "one long", "evenly spread")


@dataclass(frozen=True)
class Program:
    """One program with work: which sequence and share it has, and how many tiles of keys."""

    sequence: int
    share: int
    tiles: int


def programs(contexts: Sequence[int], kv_heads: int, splits: int, tile: int) -> list[Program]:
    """The programs of a launch that have keys, in the order in which they start (KV heads first, sequences last)."""
    found = []
    for sequence, context in enumerate(contexts):
        total = -(-context // tile)
        share = -(-total // splits)
        sizes = [min(share, total - i * share) for i in range(splits)]
        found += [Program(sequence, i, size) for i, size in enumerate(sizes) if size > 0 for _ in range(kv_heads)]
    return found


def schedule(tiles: Sequence[int], slots: int) -> list[tuple[int, int]]:
    """(slot, start) of each program: it takes the slot that is free first. Times in tiles."""
    free = [(0, slot) for slot in range(slots)]
    placed = []
    for length in tiles:
        start, slot = heapq.heappop(free)
        placed.append((slot, start))
        heapq.heappush(free, (start + length, slot))
    return placed


def contexts_of(sequences: int, longest: int, lengths: str) -> list[int]:
    """Keys of each sequence, the longest first: equal; the others an eighth; or evenly spread from longest / S up."""
    match lengths:
        case "equal":
            return [longest] * sequences
        case "one long":
            return [longest] + [max(1, longest // 8)] * (sequences - 1)
        case _:
            return [max(1, longest * i // sequences) for i in range(sequences, 0, -1)]


@styled
def decode_setting(
    sequences: int = 1,
    longest: int = 10_000,
    lengths: str = "equal",
    kv_heads: int = 8,
    splits: int = 1,
    tile: int = 64,
    per_sm: int = 1,
) -> Figure:
    """Above, the keys of the longest sequence in shares and tiles; below, the slots of a GPU over time."""
    contexts = contexts_of(sequences, longest, lengths)
    work = programs(contexts, kv_heads, splits, tile)
    slots = SMS * per_sm
    figure = Picture(figsize=(11, 6.2), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[1, 3.6])
    _draw_shares(above, contexts[0], splits, tile)
    _draw_slots(below, work, slots)
    keys = 2 * sum(contexts) * kv_heads * HEAD_DIM * ELEMENT
    partials = 8 * sequences * kv_heads * GROUP * splits * (HEAD_DIM + 1) if splits > 1 else 0
    empty = 1 - sum(contexts) / sum(-(-context // tile) * tile for context in contexts)
    figure.supxlabel(
        f"keys and values: {si(keys, 'B')} ({GROUP} query heads per KV head, d = {HEAD_DIM}, 16 bit)\n"
        f"partial results moved: {si(partials, 'B')}, {partials / keys:.1%} more      "
        f"rows of tiles without a key: {empty:.1%}",
        fontsize=11,
    )
    return figure


def _draw_shares(axes: Axes, context: int, splits: int, tile: int) -> None:
    tiles = -(-context // tile)
    share, end = -(-tiles // splits) * tile, tiles * tile
    for i, start in enumerate(range(0, context, share)):
        width = min(share, context - start)
        axes.add_patch(Rectangle((start, 0), width, 1, fc=KV if i % 2 == 0 else KV_PALE, ec="white", lw=0.5))
    axes.add_patch(Rectangle((context, 0), end - context, 1, fc="white", ec=MUTED, hatch="////"))
    axes.set_xlim(0, 1.02 * end)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.grid(False)
    shares = len(range(0, context, share))
    per_program = f"{min(share, end) // tile:,} tiles of {tile} keys"
    axes.set_title(
        f"the longest sequence: {shares} {'share' if shares == 1 else 'shares'}, {per_program} for a program"
    )
    axes.set_xlabel("key (hatched: rows of the last tile without a key)")


def _draw_slots(axes: Axes, work: Sequence[Program], slots: int) -> None:
    tiles = [program.tiles for program in work]
    placed = schedule(tiles, slots)
    end = max(start + length for (_, start), length in zip(placed, tiles, strict=True))
    grid = np.zeros((slots, 600), dtype=int)  # 0: idle
    for (slot, start), program in zip(placed, work, strict=True):
        first, last = (round(time * grid.shape[1] / end) for time in (start, start + program.tiles))
        grid[slot, first + 2 * (start > 0) : last] = 1 + program.sequence % len(SEQUENCES)  # a gap before the next
    colors = ListedColormap(["#F4F4F4", *SEQUENCES])
    where = {"extent": (0, end, slots, 0), "aspect": "auto", "interpolation": "nearest"}
    axes.imshow(grid, cmap=colors, vmin=-0.5, vmax=len(SEQUENCES) + 0.5, **where)
    busy = sum(tiles) / (slots * end)
    axes.set_title(f"{len(work):,} programs on {slots} slots: busy {busy:.0%} of {end:,} tiles' time")
    if busy < 0.5:
        label(axes, end / 2, slots * 0.75, "grey: idle", MUTED, dx=0, ha="center")
    axes.grid(False)
    axes.set_xlabel("time, in tiles (a colour per sequence)")
    axes.set_ylabel("slot")
    axes.spines[["left", "bottom"]].set_color(INK)
