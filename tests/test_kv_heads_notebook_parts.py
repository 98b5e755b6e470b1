"""The helpers behind notebook 03: the cost of fewer KV heads as a figure."""

from __future__ import annotations

import pytest

from course_lib.plots.kv_heads import heads_and_quality, perplexities

SHARES, HEADS = (0.0, 0.01, 0.1), (1, 2, 4, 8)


def made_up(scratch: bool = True) -> list[dict]:
    """Runs with perplexities from which the kind of the run can be read."""
    runs = [
        {"kv_heads": k, "how": "mean", "share": share, "seed": 1, "perplexity": 30 + (400 if not share else 2) / k}
        for share in SHARES
        for k in HEADS
    ]
    runs.append({"kv_heads": 1, "how": "first", "share": 0.0, "seed": 1, "perplexity": 9999.0})
    if scratch:
        runs += [{"kv_heads": k, "how": "from scratch", "seed": 1, "perplexity": 29.5 + 1 / k} for k in HEADS]
    return runs


def test_perplexities_are_those_of_one_kind_of_run_and_the_mean_over_seeds():
    runs = [
        {"kv_heads": 1, "how": "mean", "share": 0.1, "seed": 1, "perplexity": 40.0},
        {"kv_heads": 1, "how": "mean", "share": 0.1, "seed": 2, "perplexity": 42.0},
        {"kv_heads": 8, "how": "mean", "share": 0.1, "seed": 1, "perplexity": 30.0},
        {"kv_heads": 1, "how": "mean", "share": 0.0, "seed": 1, "perplexity": 500.0},
        {"kv_heads": 1, "how": "random", "share": 0.1, "seed": 1, "perplexity": 600.0},
        {"kv_heads": 2, "how": "from scratch", "seed": 1, "perplexity": 31.0},
    ]
    assert list(perplexities(runs, "mean", 0.1).items()) == [(8, 30.0), (1, 41.0)]
    assert perplexities(runs, "from scratch") == {2: 31.0}


@pytest.mark.parametrize("scratch", [True, False])
def test_the_figure_draws_each_share_and_the_models_from_scratch(scratch):
    figure = heads_and_quality(made_up(scratch))
    [axes] = figure.axes
    kept, *curves = axes.lines
    assert list(kept.get_ydata()) == [80.0, 80.0]
    assert all(list(curve.get_xdata()) == [8, 4, 2, 1] for curve in curves)
    assert [curve.get_ydata()[-1] for curve in curves] == [430.0, 32.0, 32.0, 30.5][: 3 + scratch]
    labels = {text.get_text() for text in axes.texts}
    assert labels == {"merged", "+1% training", "+10% training", "all 8 kept: 80.0"} | (
        {"from scratch"} if scratch else set()
    )
    assert len(figure._repr_png_()) < 100_000
