"""The helpers behind notebook 02: counted work, what fits in memory, and the calculator widget."""

from __future__ import annotations

import pytest

from course_lib import facts
from course_lib.batch import Batch
from course_lib.errors import CourseError
from course_lib.model import Decoder
from course_lib.perf.memory import plan_memory
from course_lib.perf.tally import tally
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
        model.run(Batch.build([[1, 2, 3], [4]], [0, 0], [0, 1], "cpu"), cache)
        model.run(Batch.build([[1], [2]], [3, 1], [0, 1], "cpu"), cache)
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
