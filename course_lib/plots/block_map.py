"""The block map and the two prefix structures of notebook 08, drawn from one snapshot of a block manager.

Sequences have colours of their own, which mean nothing else in the course.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.cache.prefix_hash import block_key, root_key
from course_lib.plots.block_history import BlockState, Snapshot
from course_lib.plots.style import INK, KV_PALE, MUTED, new_figure, styled

SEQUENCES = ("#882255", "#44AA99", "#332288", "#999933", "#6699CC", "#661100")  # Tol's muted and medium schemes
GAP = 0.25  # between two blocks, in blocks


def color_of(name: str) -> str:
    """The colour of a sequence named A, B, ...: the letters take turns."""
    return SEQUENCES[(ord(name[0]) - ord("A")) % len(SEQUENCES)]


@styled
def block_map(snapshot: Snapshot, columns: int = 6, lines: int = 4) -> Figure:
    """The pool as boxes (state and reference count above each), below it the block tables and the prefix index.

    lines: room for at least so many block tables, so that the picture keeps its size from step to step.
    """
    rows, lines = -(-len(snapshot.blocks) // columns), max(lines, len(snapshot.tables))
    figure, [axes] = new_figure(10, 1.3 + 1.05 * rows + 0.42 * lines)
    right = columns * (1 + GAP) - GAP
    for block, state in enumerate(snapshot.blocks):
        y, x = divmod(block, columns)
        _box(axes, x * (1 + GAP), -1.5 * y, block, state, snapshot.block_size)
    axes.text(right, 1.4, snapshot.counts, ha="right", va="center", color=MUTED)
    top = 0.1 - 1.5 * rows + 0.8
    axes.text(0, top, "block tables", va="center", weight="bold")
    for i, (name, table) in enumerate(snapshot.tables.items()):
        y = top - 0.55 * (i + 1)
        axes.text(0, y, name, va="center", weight="bold", color=color_of(name), fontsize=13)
        axes.text(0.2, y, " ".join(map(str, table)), va="center", family="monospace", color=color_of(name))
    if snapshot.index:
        _draw_index(axes, snapshot, snapshot.index, 2.5, top)
    _frame(axes, right, top - 0.55 * (lines + 0.6), 1.6)
    axes.set_title(snapshot.event)
    return figure


@styled
def index_structures(snapshot: Snapshot) -> Figure:
    """The same indexed blocks as chained hashes (left) and as a radix tree (right)."""
    figure, panels = new_figure(11, 3, columns=2)
    for axes, kind in zip(panels, ("hash", "radix"), strict=True):
        rows = _draw_index(axes, snapshot, kind, 0, 0)
        _frame(axes, 5.0, -0.55 * (rows + 0.6), 0.3)
    figure.set_figheight(0.6 + 0.42 * rows)
    return figure


def runs(snapshot: Snapshot) -> list[tuple[int | None, list[int]]]:
    """The indexed blocks as runs without a branch, (block before the run, its blocks), parents before children.

    The nodes of a radix tree. (After an eviction the engine's tree can keep one run in two nodes.)
    """
    children: dict[int | None, list[int]] = {}
    for block, state in enumerate(snapshot.blocks):
        if state.indexed:
            children.setdefault(state.parent, []).append(block)
    found, todo = [], [(None, block) for block in reversed(children.get(None, []))]
    while todo:
        parent, block = todo.pop()
        run = [block]
        while len(following := children.get(run[-1], [])) == 1:
            run += following
        found.append((parent, run))
        todo += [(run[-1], child) for child in reversed(following)]
    return found


def keys(snapshot: Snapshot) -> dict[int, str]:
    """First four hexadecimal digits of the key of each indexed block."""
    full: dict[int | None, bytes] = {None: root_key("")}
    for _, run in runs(snapshot):
        for block in run:
            parent = full[snapshot.blocks[block].parent]
            full[block] = block_key(parent, tuple(map(ord, snapshot.blocks[block].content)))
    return {block: key.hex()[:4] for block, key in full.items() if block is not None}


def _draw_index(axes: Axes, snapshot: Snapshot, kind: str, left: float, top: float) -> int:
    """A column per depth, a row per leaf; cached blocks are pale. hash: a box per block; radix: a box per run.

    Returns the number of rows.
    """
    title, width, gap = {
        "hash": ("chained hashes: key → block", 0.92, 0.22),
        "radix": ("radix tree: runs of blocks", 1.0, 0.0),
    }[kind]
    axes.text(left, top, title, va="center", weight="bold")
    key_of, ends, continued, rows = keys(snapshot), {}, set(), 0  # ends: right edge and height of each block's box
    for parent, run in runs(snapshot):
        if parent is None or parent in continued:  # the first child continues its parent's row
            rows += 1
        y = top - 0.55 * rows
        x = left if parent is None else ends[parent][0] + 0.22
        continued.add(parent)
        for i, block in enumerate(run):
            state = snapshot.blocks[block]
            x += gap if i else 0
            before = run[i - 1] if i else parent
            if before is not None and (gap or not i):
                axes.annotate("", (x, y), ends[before], arrowprops={"arrowstyle": "->", "color": MUTED, "lw": 1})
            axes.add_patch(Rectangle((x, y - 0.2), width, 0.4, fc=KV_PALE if state.cached else "white", ec="none"))
            text = f"{key_of[block]}→{block}" if kind == "hash" else state.content.replace(" ", "␣")
            axes.text(x + width / 2, y, text, ha="center", va="center", family="monospace", fontsize=10)
            if gap or block == run[-1]:
                start = x if gap else x + width - len(run) * width
                axes.add_patch(Rectangle((start, y - 0.2), x + width - start, 0.4, fc="none", ec=MUTED, lw=1))
            x += width
            ends[block] = x, y
    return rows


def _frame(axes: Axes, right: float, bottom: float, top: float) -> None:
    axes.set_xlim(-0.05, right + 0.05)
    axes.set_ylim(bottom, top)
    axes.axis("off")


def _box(axes: Axes, x: float, y: float, block: int, state: BlockState, size: int) -> None:
    """One block: a slot per token, coloured by the sequences that hold it, in stripes where they are several."""
    stripes = [color_of(name) for name in state.holders] or [KV_PALE if state.cached else "white"]
    for slot in range(size):
        filled = slot < len(state.content)
        for i, color in enumerate(stripes):
            height = 0.8 / len(stripes)
            place = (x + slot / size, y + 0.8 - (i + 1) * height)
            axes.add_patch(Rectangle(place, 1 / size, height, fc=color, ec="none", alpha=1 if filled else 0.22))
        if filled:
            letter = state.content[slot].replace(" ", "␣")
            ink = "white" if state.holders else INK
            axes.text(x + (slot + 0.5) / size, y + 0.4, letter, ha="center", va="center", color=ink, family="monospace")
    axes.add_patch(Rectangle((x, y), 1, 0.8, fc="none", ec=INK if state.holders else MUTED, lw=1.2))
    axes.text(x, y + 0.93, f"{block}", va="center", fontsize=10, color=MUTED)
    if state.holders:
        text = f"{'+'.join(state.holders)}   refs {len(state.holders)}"
    else:
        text = "cached" if state.cached else "free"
    axes.text(x + 1, y + 0.93, text, ha="right", va="center", fontsize=10, color=INK if state.holders else MUTED)
