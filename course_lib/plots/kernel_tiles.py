"""Which program of a kernel touches which elements, drawn from a trace (`course_kernels.trace`), for notebook A1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.plots.block_map import SEQUENCES, color_of
from course_lib.plots.style import HALO, INK, KV, MUTED, PREFILL, Picture, label, new_figure, styled

if TYPE_CHECKING:  # it imports without Triton too, but the kernels' package is none of a figure's business
    from course_kernels.trace import Access

NOBODY, SEVERAL = "white", "#D9D9D9"
LABELS = 8  # programs that are named in a panel


@styled
def touched(accesses: Sequence[Access], tensors: Sequence[str]) -> Figure:
    """A panel per tensor: its elements as [rows, columns], coloured by the program that touches them.

    Programs take turns with six colours. Grey: several programs touch it. White: none does.
    """
    programs = {program: i for i, program in enumerate(dict.fromkeys(access.program for access in accesses))}
    panels = {name: [access for access in accesses if access.tensor == name] for name in tensors}
    widths = [0.35 if len(panel[0].shape) == 1 else 1 for panel in panels.values()]
    figure = Picture(figsize=(11, 4.2), layout="constrained")
    for axes, (name, panel) in zip(
        figure.subplots(1, len(panels), squeeze=False, width_ratios=widths)[0], panels.items(), strict=True
    ):
        _owners(axes, panel, programs)
        verbs = " and ".join(dict.fromkeys("stored" if access.stores else "loaded" for access in panel))
        axes.set_title(f"{name} {list(panel[0].shape)}\n{verbs}", fontsize=12)
    return figure


def _owners(axes: Axes, accesses: Sequence[Access], programs: Mapping[tuple[int, int, int], int]) -> None:
    shape = accesses[0].shape
    owner = np.full(int(np.prod(shape)), -1)
    for access in accesses:
        mine = programs[access.program]
        before = owner[access.elements]
        owner[access.elements] = np.where((before == -1) | (before == mine), mine, -2)
    wide = len(shape) > 1
    grid = owner.reshape(-1, shape[-1]) if wide else owner[:, None]
    shown = np.where(grid < 0, grid + 2, grid % len(SEQUENCES) + 2)
    colors = ListedColormap([SEVERAL, NOBODY, *SEQUENCES])
    axes.imshow(shown, cmap=colors, vmin=-0.5, vmax=len(SEQUENCES) + 1.5, aspect="auto", interpolation="nearest")
    for mine in range(min(len(programs), LABELS)):
        rows, columns = np.nonzero(grid == mine)
        if len(rows):
            _name(axes, columns.mean(), rows.mean(), f"program {mine}")
    if (grid == -2).any():
        sharing = len({access.program for access in accesses})
        _name(axes, (grid.shape[1] - 1) / 2, (grid.shape[0] - 1) / 2, f"{sharing} programs", rotation=0 if wide else 90)
    axes.grid(False)
    axes.set_ylabel("row" if wide else "element")
    axes.set_xlabel("column" if wide else " ")
    if not wide:
        axes.set_xticks([])


def _name(axes: Axes, x: float, y: float, text: str, **how: float) -> None:
    axes.text(x, y, text, ha="center", va="center", fontsize=11, color=INK, path_effects=HALO, **how)


@styled
def reach(
    rows: Mapping[str, np.ndarray], keys: int, own: Mapping[str, tuple[int, int]] | None = None, title: str = ""
) -> Figure:
    """A line per program, from the top: the positions of the keys that it loads. Blue frames: its own tokens, if given.

    rows: program's name -> positions, each 0 .. keys - 1. own: name -> (first token, one after its last).
    """
    figure, [axes] = new_figure(10, 1.6 + 0.3 * len(rows))
    for y, (name, positions) in enumerate(rows.items()):
        starts, lengths = _runs(np.unique(positions))
        axes.broken_barh(list(zip(starts, lengths, strict=True)), (y - 0.36, 0.72), color=KV)
        if own:
            first, end = own[name]
            axes.add_patch(Rectangle((first, y - 0.36), end - first, 0.72, fc="none", ec=PREFILL, lw=2))
        label(axes, keys, y, f"{len(positions):,} loads of a key")
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.22 * keys)
    axes.set_xticks(np.linspace(0, keys, 9, dtype=int))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("position of the key in its sequence" + (" (blue: the program's own tokens)" if own else ""))
    axes.set_ylabel("program")
    axes.set_title(title)
    return figure


def _runs(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Starts and lengths of the stretches without a gap in increasing numbers."""
    breaks = np.flatnonzero(np.diff(positions) > 1) + 1
    pieces = [piece for piece in np.split(positions, breaks) if len(piece)]
    return np.array([piece[0] for piece in pieces]), np.array([len(piece) for piece in pieces])


@styled
def paged_pool(
    accesses: Sequence[Access], tables: Sequence[Sequence[int]], lengths: Sequence[int], columns: int = 6
) -> Figure:
    """The keys of a paged cache [blocks, P, K, d] as boxes of P slots by K heads, coloured by the sequence that loads.

    Programs are (KV head, split, sequence). tables, lengths: blocks and tokens of each sequence A, B, ... Hatched:
    slots of a sequence's block that it does not load. White boxes: blocks of nobody.
    """
    loads = [access for access in accesses if access.tensor == "keys"]
    blocks, size, heads, d = loads[0].shape
    loader = np.full((blocks, size, heads), -1)
    for access in loads:
        loader.reshape(-1)[np.unique(access.elements // d)] = access.program[2]
    place = {block: (s, i) for s, table in enumerate(tables) for i, block in enumerate(table)}
    lines = -(-blocks // columns)
    figure, [axes] = new_figure(11, 0.9 + 1.15 * lines + 0.32 * len(tables))
    for block in range(blocks):
        y, x = divmod(block, columns)
        _block(axes, 1.2 * x, -1.35 * y, block, loader[block], place.get(block))
    right, top = 1.2 * columns - 0.2, -1.35 * lines + 0.95
    for s, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        text = f"{_letter(s)}: {length} tokens, block table {list(table)}"
        axes.text(0, top - 0.36 * s, text, va="center", color=color_of(_letter(s)), weight="bold")
    axes.text(
        right,
        top,
        f"a cell: one key; columns: {size} slots, rows: {heads} KV heads",
        ha="right",
        va="center",
        color=MUTED,
    )
    axes.set_xlim(-0.12, right + 0.02)
    axes.set_ylim(top - 0.36 * len(tables), 1.15)
    axes.axis("off")
    return figure


def _block(axes: Axes, x: float, y: float, block: int, loader: np.ndarray, place: tuple[int, int] | None) -> None:
    """One block, loader [P, K]: the sequence that loads the key, -1 for none."""
    size, heads = loader.shape
    height = 0.75 / heads
    for slot in range(size):
        for head in range(heads):
            sequence = loader[slot, head]
            corner = (x + slot / size, y + 0.75 - (head + 1) * height)
            how = {"fc": NOBODY, "hatch": "////" if place else None, "ec": SEVERAL}
            if sequence >= 0:
                how = {"fc": color_of(_letter(sequence)), "ec": "white", "alpha": 1 if head % 2 == 0 else 0.6}
            axes.add_patch(Rectangle(corner, 1 / size, height, lw=0.5, **how))
    axes.add_patch(Rectangle((x, y), 1, 0.75, fc="none", ec=INK if place else MUTED, lw=1.2))
    axes.text(x, y + 0.87, f"block {block}", va="center", fontsize=10, color=MUTED)
    if place:
        name = _letter(place[0])
        axes.text(
            x + 1, y + 0.87, f"{name}'s no. {place[1]}", ha="right", va="center", fontsize=10, color=color_of(name)
        )


def _letter(sequence: int) -> str:
    return chr(ord("A") + sequence)
