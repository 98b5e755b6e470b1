"""Figures say what they were given, are small, and follow the house style; widgets redraw when a control moves."""

import base64
import io

import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from course_lib import facts
from course_lib.errors import CourseError
from course_lib.outputs import RequestMetrics
from course_lib.perf.counts import decode_cost, prefill_cost
from course_lib.perf.roofline import Machine, critical_context
from course_lib.perf.timing import Timing
from course_lib.plots import prefill_decode, style
from course_lib.plots.roofline import Point, roofline
from course_lib.widgets import Explorer, choice, powers, roofline_explorer

LLAMA = facts.model("Llama-3.1-8B").config
MACHINES = [Machine.from_facts(facts.device(name)) for name in ("A100-80GB", "H100", "RTX 4090")]
SHAPES = [facts.model(name) for name in ("SmolLM2-135M", "Llama-3.1-8B", "Mixtral-8x7B")]


def figures() -> dict[str, Figure]:
    timings = {n: Timing((n * 1e-3, n * 1.1e-3, n * 1.3e-3)) for n in (1, 4, 16)}
    costs = {"prefill, 256 tokens": prefill_cost(LLAMA, 256), "decode, batch 64": decode_cost(LLAMA, 64, 4096)}
    metrics = RequestMetrics(arrival=1.0, token_times=(1.25, 1.30, 1.35))
    decode = costs["decode, batch 64"]
    points = [
        Point.measured("decode", decode.flops, decode.bytes, Timing((0.02, 0.03, 0.04)), style.DECODE),
        Point.bound("prefill", costs["prefill, 256 tokens"], MACHINES[0], style.PREFILL),
    ]
    return {
        "pass_times": prefill_decode.pass_times(timings),
        "pass_costs": prefill_decode.pass_costs(costs),
        "request_timeline": prefill_decode.request_timeline(metrics),
        "decode_share": prefill_decode.decode_share({"measured": ([1, 10, 100], [0.1, 0.5, 0.9])}),
        "gpu_bounds": prefill_decode.gpu_bounds({"H100": (0.05, 0.004), "L4": (0.4, 0.05)}),
        "intensity_of_decode": prefill_decode.intensity_of_decode(LLAMA, MACHINES[1], [128, 8192], "Llama"),
        "cost_against_parameters": prefill_decode.cost_against_parameters(SHAPES),
        "roofline_setting": prefill_decode.roofline_setting(batch=64),
        "roofline": roofline(MACHINES, points, "title"),
    }


@pytest.fixture(scope="module")
def drawn() -> dict[str, Figure]:
    return figures()


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))


def test_every_figure_is_a_small_png_and_the_last_line_of_a_cell_shows_it(drawn):
    for name, figure in drawn.items():
        data = figure._repr_png_()
        width, height = Image.open(io.BytesIO(data)).size
        assert len(data) < 100_000, f"{name}: {len(data)} bytes"
        assert 800 <= width <= 1100 and height <= 600, f"{name}: {width} x {height}"


def test_equal_data_gives_equal_pictures():
    shares = {"measured": ([1, 10, 100], [0.1, 0.5, 0.9])}
    first, second = prefill_decode.decode_share(shares), prefill_decode.decode_share(shares)
    assert style.png(first) == style.png(second)


def test_every_axis_with_ticks_has_a_label_or_a_unit(drawn):
    for name, figure in drawn.items():
        figure.draw_without_rendering()
        for axes in figure.axes:
            if len(axes.get_xticks()):
                assert axes.get_xlabel(), f"{name}: the x axis has no label"


def test_one_colour_per_meaning_and_all_of_them_apart():
    colours = [style.PREFILL, style.DECODE, style.WEIGHTS, style.KV, style.COMPUTE, style.MEMORY]
    assert len(set(colours)) == 6
    # Okabe and Ito's palette: sixteen bits apart in at least one channel is far too little, so ask for a clear gap.
    for i, one in enumerate(colours):
        for other in colours[i + 1 :]:
            assert max(abs(a - b) for a, b in zip(to_rgb(one), to_rgb(other), strict=True)) > 0.2


@pytest.mark.parametrize(
    ("value", "unit", "want"),
    [(2.039e12, "B/s", "2.04 TB/s"), (0.0052, "s", "5.2 ms"), (1e3, "", "1 k"), (3e-6, "s", "3 µs"), (0, "B", "0 B")],
)
def test_numbers_with_si_prefix(value, unit, want):
    assert style.si(value, unit) == want


def test_point_carries_the_flops_that_were_reached():
    cost = prefill_cost(LLAMA, 128)
    point = Point.measured("prefill", cost.flops, cost.bytes, Timing((1.0, 2.0, 4.0)), style.PREFILL)
    assert (point.intensity, point.flops) == (cost.intensity, cost.flops / 2)
    assert point.spread == (cost.flops / 3.6, cost.flops / 1.2)
    assert Point.bound("prefill", cost, MACHINES[0], style.PREFILL).flops == MACHINES[0].attainable(cost.intensity)


def test_figures_name_the_numbers_they_were_given(drawn):
    assert "TTFT 250 ms" in texts(drawn["request_timeline"]) and "TPOT 50 ms" in texts(drawn["request_timeline"])
    limit = critical_context(LLAMA, MACHINES[1])
    assert f"{limit:,.0f} cached tokens" in texts(drawn["intensity_of_decode"])
    assert "RTX 4090 (secondary source)" in texts(drawn["roofline"]), "unconfirmed figures are marked"
    setting = texts(drawn["roofline_setting"])
    assert "memory-bound" in setting and "50.4 GB of 80 GB" in setting


def test_a_setting_that_does_not_fit_says_so():
    assert "does not fit" in texts(prefill_decode.roofline_setting(model="Llama-3.1-405B", device="L4"))


def test_explorer_redraws_when_a_control_moves():
    explorer = roofline_explorer()
    before = explorer.picture.value
    explorer.controls["batch"].value = 64
    after = explorer.picture.value
    assert before != after
    assert after == style.png(prefill_decode.roofline_setting(batch=64))
    bundle = explorer._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert base64.b64decode(bundle["image/png"]) == after, "readers without a kernel see the picture as it stands"


def test_explorer_offers_only_models_and_devices_that_have_an_answer():
    explorer = roofline_explorer()
    models, devices = explorer.controls["model"].options, explorer.controls["device"].options
    assert len(models) > 15 and len(devices) > 10
    assert all(facts.model(name).config for name in models)
    assert all(facts.device(name).ridge and facts.device(name).memory for name in devices)


def test_explorer_explains_a_setting_without_an_answer_and_keeps_the_picture():
    def draw(name: str) -> Figure:
        if name == "bad":
            raise CourseError("no roof is known for bad")
        return prefill_decode.gpu_bounds({name: (1, 1)})

    explorer = Explorer(draw, {"name": choice("device", ["good", "bad"], "good")})
    good = explorer.picture.value
    explorer.controls["name"].value = "bad"
    assert explorer.picture.value == good and "no roof is known" in explorer.message.value
    explorer.controls["name"].value = "good"
    assert explorer.message.value == ""


def test_powers_of_two():
    slider = powers("batch", 1, 1024, 4)
    assert [value for _, value in slider.options] == [2**e for e in range(11)]
    assert slider.value == 4
