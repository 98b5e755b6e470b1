"""The pictures and the explorer of notebook 00."""

from __future__ import annotations

import pytest

from course_lib.perf.roofline import Machine
from course_lib.plots.start import NOTEBOOKS, bound_and_measured, course_map, next_token, two_numbers
from course_lib.widgets import next_token_explorer


def texts(figure) -> list[str]:
    """All texts drawn inside the axes of a figure."""
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_two_numbers_state_values_and_factors():
    mine, other = Machine("this CPU", 100e9, 20e9), Machine("H100", 989e12, 3.35e12)
    assert texts(two_numbers([mine, other])) == ["20 GB/s", "3.35 TB/s  168×", "100 GFLOP/s", "989 TFLOP/s  9,890×"]


def test_next_token_says_what_is_cut():
    figure = next_token([" a", " b", " c"], [0.6, 0.3, 0.001], [0.9, 0.0, 0.001])
    assert texts(figure) == ["90%", "cut", "under 1 %"]


def test_the_speed_picture_relates_to_the_bound():
    assert texts(bound_and_measured(1000, 500, 10)) == [
        "1,000 tokens/s",
        "500 tokens/s  (50% of the bound)",
        "10 tokens/s  (1% of the bound)",
    ]


def test_the_map_fills_what_is_ready():
    figure = course_map(["00", "01"])
    bold = [text.get_text() for text in figure.axes[0].texts if text.get_weight() == "bold" and text.get_bbox_patch()]
    assert [text.split()[0] for text in bold] == ["00", "01"]
    assert len({place for *_, x, y in NOTEBOOKS for place in [(x, y)]}) == len(NOTEBOOKS)


def test_the_explorer_redraws_and_greedy_leaves_one_token(tiny):
    explorer = next_token_explorer(tiny, "And the king said unto")
    before = explorer.picture.value
    explorer.controls["temperature"].value = 0.0
    assert explorer.picture.value != before
    assert "1 of 2,048 tokens can be drawn" in explorer.draw(0.0, 1.0).axes[0].get_title(loc="left")
    assert "2,048 of 2,048 tokens can be drawn" in explorer.draw(1.0, 1.0).axes[0].get_title(loc="left")


@pytest.mark.parametrize("top_p", [0.05, 0.5, 1.0])
def test_a_larger_top_p_never_draws_from_fewer_tokens(tiny, top_p):
    explorer = next_token_explorer(tiny, "O")
    counts = [
        int(explorer.draw(1.0, p).axes[0].get_title(loc="left").split("...")[1].split()[0].replace(",", ""))
        for p in (top_p, min(1.0, top_p + 0.2))
    ]
    assert 1 <= counts[0] <= counts[1]
