"""The helpers behind notebook 02: counted work, what fits in memory, and the calculator widget."""

from __future__ import annotations

import pytest

from course_lib import facts
from course_lib.batch import Batch
from course_lib.errors import CourseError
from course_lib.model import Decoder
from course_lib.perf.memory import plan_memory
from course_lib.perf.tally import tally
from course_lib.plots.kv_memory import KV_FORMATS, budget_setting, memory_map
from course_lib.widgets import kv_calculator
from tests.conftest import small_config


@pytest.fixture(scope="module")
def model():
    return Decoder.random(small_config())


@pytest.mark.parametrize("n", [1, 2, 13])
def test_counted_work_equals_the_polynomials(model, n):
    """Generating n tokens: n(n+1)/2 against n token passes, n(n+1)(n+2)/6 against n(n+1)/2 pairs."""
    with tally(model) as without:
        for t in range(1, n + 1):
            model.forward([1] * t)
    assert (without.token_passes, without.pairs) == (n * (n + 1) // 2, n * (n + 1) * (n + 2) // 6)
    cache = model.new_cache()
    with tally(model) as cached:
        for _ in range(n):
            model.forward([1], cache)
    assert (cached.token_passes, cached.pairs) == (n, n * (n + 1) // 2)


def test_tally_counts_every_sequence_of_a_batch_and_stops_afterwards(model):
    cache = model.new_cache(2, 8)
    with tally(model) as count:
        model.run(Batch.build([[1, 2, 3], [4]], [0, 0], [0, 1]), cache)
        model.run(Batch.build([[1], [2]], [3, 1], [0, 1]), cache)
    # First pass: 6 pairs of the prompt of three and 1 of the other; second: 4 visible keys and 2.
    assert (count.token_passes, count.pairs) == (4 + 2, 6 + 1 + 4 + 2)
    model.forward([1, 2])
    assert count.token_passes == 6


def test_plan_is_the_formula_worked_by_hand():
    """Llama-3.1-8B on one H100, 8,192 tokens: (72 GB - 16.06 GB) / 1.074 GB = 52.1."""
    plan = plan_memory(facts.model("Llama-3.1-8B"), facts.device("H100"), context=8192)
    assert plan.kv_per_sequence == 131_072 * 8192
    assert plan.weights == 2 * 8_030_261_248
    assert plan.max_sequences == 52


def test_weights_that_do_not_fit_leave_no_sequence():
    plan = plan_memory(facts.model("Llama-2-70B"), facts.device("H100"), context=4096)
    assert plan.kv_budget < 0
    assert plan.max_sequences == 0


@pytest.mark.parametrize(
    "name, devices, copies",
    [("Llama-2-70B", 8, 1), ("Qwen2.5-7B", 8, 2), ("DeepSeek-V3", 4, 4), ("SmolLM2-135M", 2, 4 / 3)],
)
def test_kv_heads_are_copied_where_devices_cannot_share_them(name, devices, copies):
    """8 heads on 8 devices: one each; 4 heads on 8, or one latent on 4: copies; 3 heads on 2: two slots each."""
    shape, device = facts.model(name), facts.device("H100")
    alone = plan_memory(shape, device, 1024).kv_per_sequence
    assert plan_memory(shape, device, 1024, devices=devices).kv_per_sequence == pytest.approx(copies * alone)


def test_a_device_without_known_memory_is_refused():
    with pytest.raises(CourseError, match="Apple M1"):
        plan_memory(facts.model("Llama-2-7B"), facts.device("Apple M1"), 1024)


def test_kv_formats_count_their_scales():
    """llama.cpp's blocks of 32: q8_0 has 34 bytes, q4_0 has 18 (ggml-common.h)."""
    shape = facts.model("Llama-3.1-8B")
    sizes = {name: shape.kv_bytes_per_token(size) for name, size in KV_FORMATS.items()}
    assert list(sizes.values()) == [131_072, 65_536, 69_632, 36_864]


def texts(figure) -> str:
    written = [[axes.get_title("left"), *(text.get_text() for text in axes.texts)] for axes in figure.axes]
    return "\n".join(sum(written, []))


@pytest.mark.parametrize(
    "setting, title",
    [
        (("Llama-3.1-8B", "16 bit", "H100", 1, "16 bit", 8192, 52), "52 × 8,192 tokens: fit"),
        (("Llama-3.1-8B", "16 bit", "H100", 1, "16 bit", 8192, 53), "53 × 8,192 tokens: 52 fit"),
        (("Llama-3.1-70B", "16 bit", "H100", 1, "16 bit", 8192, 1), "1 × 8,192 tokens: 0 fit"),
        (("DeepSeek-V3", "8 bit", "H200", 8, "16 bit", 8192, 16), "16 × 8,192 tokens: fit"),
    ],
)
def test_budget_picture_says_what_fits(setting, title):
    figure = budget_setting(*setting)
    assert title in texts(figure)
    assert f"KV of {setting[-1]:,}" in texts(figure)


def test_memory_map_names_its_three_colours_and_the_done_rows():
    figure = memory_map(held=[30, 0], final=[60, 20], capacity=100, step=5)
    for name in ("held", "will be used", "never used", "request done"):
        assert name in texts(figure)


def test_the_calculator_draws_again_when_a_control_moves():
    calculator = kv_calculator()
    first = calculator.picture.value
    for control, value in (("devices", 2), ("kv", "fp8"), ("context", 4096), ("model", "DeepSeek-V3")):
        calculator.controls[control].value = value
        assert calculator.picture.value != first
        first = calculator.picture.value


def test_the_calculator_offers_only_what_can_be_drawn():
    controls = kv_calculator().controls
    for model in controls["model"].options:
        for device in controls["device"].options:
            plan = plan_memory(facts.model(model), facts.device(device), context=8192)
            assert plan.kv_per_sequence > 0
            assert plan.memory > 0
