"""The helpers behind notebook A1: figures of traced loads, and the explorer's model of a launch."""

from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from course_kernels.trace import Access
from course_lib.plots.kernel_explorer import LENGTHS, Program, contexts_of, decode_setting, programs, schedule
from course_lib.plots.kernel_tiles import paged_pool, reach, touched
from course_lib.plots.kernels import bytes_moved, online_softmax, warps
from course_lib.plots.style import png
from course_lib.widgets import decode_kernel_explorer


def texts(figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))


def access(program, tensor, shape, elements, stores=False) -> Access:
    return Access("kernel", program, stores, tensor, shape, 4, np.asarray(elements), 0)


def two_programs() -> list[Access]:
    """Program 0 has the rows 0 and 1 of x [3, 4], program 1 the last; both load the weight."""
    rows = (((0, 0, 0), range(8)), ((1, 0, 0), range(8, 12)))
    return [
        *(access(program, "x", (3, 4), list(elements)) for program, elements in rows),
        *(access(program, "weight", (4,), list(range(4))) for program, _ in rows),
    ]


def pool() -> list[Access]:
    """Keys [3 blocks, 4 slots, 1 head, d = 2]: A has block 2 and one slot of block 0, B three slots of block 1."""
    shape = (3, 4, 1, 2)
    return [
        access((0, 0, 0), "keys", shape, [*range(16, 24), 0, 1]),
        access((0, 0, 1), "keys", shape, list(range(8, 14))),
    ]


def report(registers, spilled, blocks, warps_each, limit="registers"):
    inside = SimpleNamespace(blocks=blocks, warps=blocks * warps_each, share=blocks * warps_each / 64, limit=limit)
    return SimpleNamespace(registers=registers, spilled=spilled, resident=inside)


FIGURES = {
    "touched": lambda: touched(two_programs(), ("x", "weight")),
    "reach": lambda: reach({"0": np.arange(8), "1": np.arange(16)}, 16, {"0": (0, 8), "1": (8, 16)}, "title"),
    "paged_pool": lambda: paged_pool(pool(), [[2, 0], [1]], [5, 3]),
    "bytes_moved": lambda: bytes_moved({"two": {"read": 2e6, "write": 2e6}, "one": {"read": 3e6}}),
    "online_softmax": lambda: online_softmax([1, 2, 3, 0], 2, [2, 3], {"right": [0.1, 0.4], "wrong": [0.1, 0.9]}, 0.4),
    "warps": lambda: warps(
        {"4 warps": report(255, 424, 2, 4), "8 warps": report(178, 0, 1, 8)}, {"4 warps": 224.0, "8 warps": 112.0}
    ),
    "decode_setting": lambda: decode_setting(splits=16),
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_a_small_png_of_the_house_size_with_named_axes(name):
    figure = FIGURES[name]()
    data = png(figure)
    width, height = Image.open(io.BytesIO(data)).size
    assert len(data) < 100_000 and 800 <= width <= 1200 and height <= 700
    for axes in figure.axes:
        assert not axes.axison or not len(axes.get_xticks()) or axes.get_xlabel()


def test_elements_have_the_colour_of_their_program_and_grey_where_several_touch_them():
    figure = touched(two_programs(), ("x", "weight"))
    x, weight = (axes.images[0] for axes in figure.axes)
    colors = [[tuple(color) for color in row] for row in x.cmap(x.norm(x.get_array()))]
    assert colors[0] == colors[1] != colors[2]
    assert len({tuple(color) for row in weight.cmap(weight.norm(weight.get_array())) for color in row}) == 1
    assert "2 programs" in texts(figure) and "x [3, 4]\nloaded" in texts(figure)


def test_what_one_program_loads_and_stores_is_its_own():
    """A residual that is updated in place is touched twice by one program: no sharing."""
    twice = [access((0, 0, 0), "r", (2, 2), [0, 1, 2, 3], stores) for stores in (False, True)]
    figure = touched(twice, ("r",))
    assert "program 0" in texts(figure) and "loaded and stored" in texts(figure) and "programs" not in texts(figure)


def test_lines_of_keys_end_where_the_loads_end():
    figure = reach({"0": np.array([0, 1, 5, 6, 7])}, 8)
    bars = [path.get_extents().bounds for path in figure.axes[0].collections[0].get_paths()]
    assert [(x, width) for x, _, width, _ in bars] == [(0, 2), (5, 3)]
    assert "5 loads of a key" in texts(figure)


def test_the_pool_names_each_block_and_hatches_what_is_not_loaded():
    figure = paged_pool(pool(), [[2, 0], [1]], [5, 3])
    for text in ("A's no. 0", "A's no. 1", "B's no. 0", "A: 5 tokens, block table [2, 0]", "B: 3 tokens"):
        assert text in texts(figure)
    hatched = [patch for patch in figure.axes[0].patches if patch.get_hatch()]
    assert len(hatched) == 4  # three slots of block 0, one of block 1


def test_spills_are_drawn_beyond_the_registers():
    figure = FIGURES["warps"]()
    assert "255, 424 bytes spilled" in texts(figure) and "178, no spills" in texts(figure)
    assert "2 programs, bound by registers" in texts(figure)
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths == [255, 424 / 4, 178, 0]


def test_programs_of_a_launch_worked_by_hand():
    """100 keys are 7 tiles of 16: in 4 shares of 2 the last has 1. A sequence of 20 has work for 2 programs."""
    assert programs([100, 20], kv_heads=1, splits=4, tile=16) == [
        Program(0, 0, 2), Program(0, 1, 2), Program(0, 2, 2), Program(0, 3, 1), Program(1, 0, 1), Program(1, 1, 1)
    ]  # fmt: skip
    assert len(programs([100], kv_heads=8, splits=1, tile=64)) == 8


def test_a_program_takes_the_slot_that_is_free_first():
    assert schedule([5, 2, 2, 1], slots=2) == [(0, 0), (1, 0), (1, 2), (1, 4)]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_longest_sequence_is_the_first_and_none_is_empty(lengths):
    contexts = contexts_of(16, 100, lengths)
    assert len(contexts) == 16 and contexts[0] == max(contexts) == 100 and min(contexts) >= 1


def test_figures_of_the_explorer_are_those_that_the_notebook_names():
    assert "8 programs on 132 slots: busy 6% of 157 tiles' time" in texts(decode_setting(splits=1))
    assert "256 programs on 132 slots: busy 95% of 10 tiles' time" in texts(decode_setting(splits=32))
    assert "41 MB" in texts(decode_setting()) and "0 B, 0.0% more" in texts(decode_setting())
    # 8 S H splits (d + 1) with H = 32: 2.1 MB beside 41 MB
    assert "2.11 MB, 5.2% more" in texts(decode_setting(splits=64))
    assert "without a key: 21.9%" in texts(decode_setting(longest=100, tile=128))


def test_explorer_redraws():
    explorer = decode_kernel_explorer()
    before = explorer.picture.value
    explorer.controls["splits"].value = 16
    assert explorer.picture.value != before and not explorer.message.value
