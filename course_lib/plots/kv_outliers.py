"""Figures of notebook 04: the magnitudes of keys and values by channel, and what each scheme does to them."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from torch import Tensor

from course_lib.perf.fake_quantize import SCHEMES, output_error
from course_lib.perf.kv_record import KVRecord
from course_lib.plots.style import INK, KV, KV_PALE, Picture, label, new_figure, styled

VIEWS = {"keys after RoPE": ("keys", False), "keys before RoPE": ("keys", True), "values": ("values", False)}
SHADES = LinearSegmentedColormap.from_list("magnitude", ["white", KV_PALE, KV, "#3B1B30"])


@styled
def outlier_channels(head: KVRecord) -> Figure:
    """|x| of every token and channel of one head: keys before and after RoPE, and values, on one scale."""
    figure, panels = new_figure(11.5, 4.4, columns=3)
    views = ("keys before RoPE", "keys after RoPE", "values")
    tensors = [_view(head, view) for view in views]
    top = float(max(x.abs().max() for x in tensors))
    for axes, view, x in zip(panels, views, tensors, strict=True):
        image = _magnitudes(axes, x, top)
        axes.set_title(f"{view}: {_peak(x):.1f}×")
    panels[0].set_ylabel("token")
    bar = figure.colorbar(image, ax=panels, shrink=0.85)
    bar.set_label("magnitude |x|")
    bar.outline.set_visible(False)
    figure.suptitle(
        f"{head.model}, layer {head.layers[0]}, one KV head.  N×: largest mean |x| of a channel over the median one",
        x=0.01, ha="left", fontsize=12,
    )  # fmt: skip
    return figure


@styled
def outlier_setting(head: KVRecord, view: str) -> Figure:
    """One head's magnitudes in a view of VIEWS (left); the error of each scheme in what attention puts out (right)."""
    figure = Picture(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.15])
    x = _view(head, view)
    image = _magnitudes(left, x, float(x.abs().max()))
    left.set_ylabel("token")
    left.set_title(f"{view}: {_peak(x):.1f}×")
    bar = figure.colorbar(image, ax=left, shrink=0.85)
    bar.outline.set_visible(False)
    bar.set_label("magnitude |x|")
    what, before_rope = VIEWS[view]
    errors = {name: output_error(head, scheme, what, before_rope) for name, scheme in SCHEMES.items()}
    for y, (name, error) in enumerate(errors.items()):
        right.barh(y, error, color=KV if "channel" in name else KV_PALE, height=0.62)
        label(right, error, y, f"{error:.1%}", INK)
    right.set_yticks(range(len(errors)), list(errors))
    right.invert_yaxis()
    right.set_xlim(0, 1.25 * max(errors.values()))
    right.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    right.grid(axis="y", visible=False)
    right.set_xlabel("change of the attention output, |o' − o| / |o|")
    right.set_title("what each scheme costs")
    figure.suptitle(f"{head.model}, layer {head.layers[0]}", x=0.01, ha="left", fontsize=12)
    return figure


def _view(head: KVRecord, view: str) -> Tensor:
    """[n, d]."""
    what, before_rope = VIEWS[view]
    return (head.raw_keys if before_rope else getattr(head, what))[0, :, 0]


def _peak(x: Tensor) -> float:
    """Mean |x| of the largest channel over that of the median one."""
    means = x.abs().mean(0)
    return float(means.max() / means.median())


def _magnitudes(axes: Axes, x: Tensor, top: float):
    n, d = x.shape
    image = axes.imshow(x.abs().numpy(), aspect="auto", cmap=SHADES, vmin=0, vmax=top, interpolation="nearest")
    axes.set_xticks([0, d // 2, d - 1])
    axes.set_yticks([0, n - 1])
    axes.grid(visible=False)
    axes.set_xlabel("channel")
    return image
