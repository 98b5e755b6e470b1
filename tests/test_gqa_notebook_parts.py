"""The helpers behind notebook 03: other attention for a shape, the longest context, the figures and the planner."""

from __future__ import annotations

import math

import pytest

from course_lib import facts
from course_lib.errors import CourseError
from course_lib.perf.memory import longest_context, plan_memory
from course_lib.perf.redesign import redesigns, shape_with_kv_heads
from course_lib.perf.roofline import Machine
from course_lib.perf.timing import Timing
from course_lib.plots import gqa, gqa_sizes, mla
from course_lib.plots.gqa_planner import planner_setting
from course_lib.widgets import kv_planner

LLAMA, GEMMA, DEEPSEEK = (facts.model(name) for name in ("Llama-3.1-8B", "Gemma-3-27B", "DeepSeek-V3"))
H100, H200 = facts.device("H100"), facts.device("H200")
SAMPLES = Timing((0.001, 0.002, 0.004))


def texts(figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))


def test_other_kv_heads_change_the_cache_by_their_ratio_and_no_parameter():
    shape = shape_with_kv_heads(LLAMA, 32)
    assert shape.kv_bytes_per_token() == 4 * LLAMA.kv_bytes_per_token() == 524_288
    assert shape.params == LLAMA.params


def test_latent_attention_becomes_its_plain_form():
    """128 heads, a key of 128 + 64 and a value of 128 elements: 40,960 numbers a layer in place of 576."""
    shape = shape_with_kv_heads(DEEPSEEK, 128)
    assert shape.mla is None
    assert shape.kv_bytes_per_token() == 61 * 40_960 * 2
    assert shape.kv_bytes_per_token() / DEEPSEEK.kv_bytes_per_token() == pytest.approx(40_960 / 576)


def test_redesigns_of_a_model_by_hand():
    """Bytes of 8,192 tokens: 2 L d b n K with L 32, d 128, b 2; a window keeps 1,024 of them in 27 of 32 layers."""
    designs = redesigns(LLAMA, window=1024)
    per_head = 2 * 32 * 128 * 2 * 8192
    assert {name: shape.kv_bytes(8192) for name, shape in designs.items()} == {
        "as it is": 8 * per_head,
        "K = 32": 32 * per_head,
        "K = 4": 4 * per_head,
        "K = 1": per_head,
        "w = 1,024 in 5 of 6 layers": 8 * per_head * (27 * 1024 + 5 * 8192) / (32 * 8192),
        "w = 1,024 in every layer": 8 * per_head / 8,
        "MLA, 512 + 64": 32 * 576 * 2 * 8192,
    }
    assert {shape.params for shape in designs.values()} == {LLAMA.params}


@pytest.mark.parametrize("name", facts.models())
def test_every_model_has_redesigns_whose_heads_share_evenly(name):
    shape = facts.model(name)
    designs = redesigns(shape, window=512)
    assert designs["as it is"] is shape
    assert ("MLA, 512 + 64" in designs) == (shape.mla is None)
    assert ("no windows" in designs) == any(shape.windows)
    for other in designs.values():
        assert other.kv_heads is None or shape.heads % other.kv_heads == 0
        assert other.kv_bytes(4096) > 0


@pytest.mark.parametrize("shape", [LLAMA, GEMMA, DEEPSEEK], ids=lambda shape: shape.name)
@pytest.mark.parametrize("sequences", [1, 16])
def test_the_longest_context_fits_and_one_token_more_does_not(shape, sequences):
    how = {"bytes_per_weight": 1.0, "bytes_per_kv": 1.0, "devices": 8}
    n = longest_context(shape, H200, sequences, **how)
    assert plan_memory(shape, H200, n, **how).max_sequences >= sequences
    assert plan_memory(shape, H200, n + 1, **how).max_sequences < sequences


def test_the_longest_context_at_its_limits():
    mistral = facts.model("Mistral-7B-v0.1")  # a window of 4,096 in every layer: 0.54 GB a sequence
    assert math.isinf(longest_context(mistral, H100, 16))
    assert 0 < longest_context(mistral, H100, 1024) < 4096
    assert longest_context(facts.model("Llama-2-70B"), H100, 1) == 0
    with pytest.raises(CourseError, match="Apple M1"):
        longest_context(LLAMA, facts.device("Apple M1"), 1)


def test_sharing_draws_a_line_from_each_query_head_to_what_it_reads():
    figure = gqa.sharing({"GQA": [0, 0, 1, 1], "wrong": [0, 1, 0, 1]})
    right, wrong = figure.axes
    # KV heads stand below the middle of their groups: 0.5 and 2.5.
    assert [line.get_xdata()[1] for line in right.lines] == [0.5, 0.5, 2.5, 2.5]
    assert [line.get_xdata()[1] for line in wrong.lines] == [0.5, 2.5, 0.5, 2.5]
    assert [axes.get_title("left") for axes in figure.axes] == ["GQA", "wrong"]


def test_parts_of_a_step_are_drawn_with_their_bounds():
    figure = gqa.time_per_sequence([1, 2], {"linear": [SAMPLES] * 2, "attention": [SAMPLES] * 2}, {
        "linear": [0.001, 0.001], "attention": [0.001, 0.002]
    })  # fmt: skip
    dotted = [line.get_ydata().tolist() for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert dotted == [[0.001, 0.0005], [0.001, 0.001]]


def test_a_rate_of_nothing_is_not_drawn():
    figure = gqa.step_rates([1024, 2048, 4096], {"K = 32": [20.0, 10.0, 0], "K = 8": [80.0, 40.0, 20.0]}, "title")
    assert [list(line.get_xdata()) for line in figure.axes[0].lines] == [[1024, 2048], [1024, 2048, 4096]]


def test_every_model_is_named_with_its_factor():
    written = texts(gqa_sizes.every_model([LLAMA, GEMMA, DEEPSEEK, facts.model("Llama-2-7B")]))
    for part in (
        "Llama-3.1-8B  (H 32, K 8)",
        "128 KiB, 1/4",
        "H 32, K 16, w 1,024",
        "H 128, MLA",
        "1/71.1",
        "512 KiB\n",
    ):
        assert part in written + "\n"


@pytest.fixture(scope="module")
def drawn():
    work = {"plain": [100, 200], "absorbed": [1, 400]}
    return {
        "intensity": gqa.intensity_of_parts([1, 64], [1, 64], {"MHA": 1, "MLA": 242}, Machine.from_facts(H100)),
        "decode": gqa.decode_times({8: {128: SAMPLES}, 1: {128: SAMPLES}}, {8: {128: 0.001}, 1: {128: 0.0005}}),
        "lengths": gqa_sizes.cache_by_length([512, 1024], {"a": [1e6, 2e6], "b": [1e6, 1e6]}, {"b": [1e6, 2e6]}),
        "entries": mla.entries({"MHA": 40_960, "MLA": 576}, "title"),
        "forms": mla.two_forms(),
        "work": mla.work_of_forms([1, 512], work, {form: [SAMPLES] * 2 for form in work}, 149, "title"),
    }


@pytest.mark.parametrize(
    "name, words",
    [
        ("intensity", ["linear layers", "MHA", "MLA", "ridge of H100: 295"]),
        ("decode", ["K = 8", "K = 1", "dotted: bounds"]),
        ("lengths", ["a", "b", "dashed: without freeing"]),
        ("entries", ["40,960", "576"]),
        ("forms", ["attend", "$W_{UV}$", "k, v of all H\n[n, H, ...]"]),
        ("work", ["plain", "absorbed", "equal at 149"]),
    ],
)
def test_figures_name_what_they_show_and_stay_small(drawn, name, words):
    figure = drawn[name]
    written = texts(figure)
    assert all(word in written for word in words)
    assert len(figure._repr_png_()) < 100_000


def test_the_planner_says_what_fits_as_it_is_and_otherwise():
    """Llama-3.1-8B on one H100: 55.9 GB for the cache, so 13 sequences of 32,768 tokens at 4.29 GB; K = 1: 104."""
    figure = planner_setting("Llama-3.1-8B", "16 bit", "H100", 1, "16 bit", 4096, 32_768, 16)
    left, right = figure.axes
    assert "55.9 GB left for the cache" in texts(figure)
    assert "any length" in [text.get_text() for text in left.texts]
    assert [text.get_text() for text in right.texts][1:] == ["13", "3", "26", "104", "49", "104", "46"]
    assert "the weights alone do not fit" in texts(
        planner_setting("Llama-3.1-70B", "16 bit", "H100", 1, "16 bit", 4096, 32_768, 16)
    )


def test_the_planner_draws_again_when_a_control_moves():
    planner = kv_planner()
    picture = planner.picture.value
    for control, value in (("window", 512), ("sequences", 4), ("context", 8192), ("model", "DeepSeek-V3")):
        planner.controls[control].value = value
        assert planner.picture.value != picture
        assert planner.message.value == ""
        picture = planner.picture.value
