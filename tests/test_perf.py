"""The performance room: counts against torch's own FLOP counter, bounds against worked figures, honest timing."""

import math

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from course_lib import facts
from course_lib.batch import Batch
from course_lib.config import ModelConfig
from course_lib.errors import CourseError
from course_lib.model import Decoder
from course_lib.perf import counts, passes, probe, roofline, timing
from tests.conftest import latent_config

TOY = dict(layers=3, hidden=48, heads=6, kv_heads=2, head_dim=16, ffn=80, vocab=100, context=64)
LLAMA = facts.model("Llama-3.1-8B").config
H100 = roofline.Machine.from_facts(facts.device("H100"))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def toy(windows=(), **changes) -> ModelConfig:
    return ModelConfig(architecture="llama", windows=windows, **{**TOY, **changes})


def run_toy_pass(config: ModelConfig, new: list[int], cached: list[int]) -> None:
    """The matrix products of one pass, with heads * head_dim != hidden; attention visits only what a query sees."""
    q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
    x = torch.zeros(sum(new), config.hidden)
    for window in config.windows:
        for out_features in (q_width, kv_width, kv_width):
            x @ torch.zeros(config.hidden, out_features)
        for n, c in zip(new, cached, strict=True):
            for position in range(c, c + n):
                first = max(0, position + 1 - window) if window else 0
                keys = position + 1 - first + min(first, config.sinks)
                for _ in range(config.heads):
                    scores = torch.zeros(1, config.head_dim) @ torch.zeros(config.head_dim, keys)
                    scores @ torch.zeros(keys, config.head_dim)
        torch.zeros(sum(new), q_width) @ torch.zeros(q_width, config.hidden)
        x @ torch.zeros(config.hidden, config.ffn)
        x @ torch.zeros(config.hidden, config.ffn)
        torch.zeros(sum(new), config.ffn) @ torch.zeros(config.ffn, config.hidden)
    x[: len(new)] @ torch.zeros(config.hidden, config.vocab)


@pytest.mark.parametrize(
    ("windows", "sinks"), [((), 0), ((5, None, 5), 0), ((5, None, 5), 2)], ids=["full", "windows", "sinks"]
)
@pytest.mark.parametrize(
    ("new", "cached"),
    [([13], [0]), ([1], [12]), ([1, 1, 1], [12, 3, 0]), ([4], [9]), ([7, 1, 2], [0, 20, 3])],
    ids=["prefill", "decode", "decode batch", "chunk", "mixed"],
)
def test_flops_equal_those_torch_counts(new, cached, windows, sinks):
    config = toy(windows, sinks=sinks)
    with FlopCounterMode(display=False) as counter:
        run_toy_pass(config, new, cached)
    assert counts.pass_cost(config, new, cached).flops == counter.get_total_flops()


@pytest.mark.parametrize(("batch", "context"), [(1, 40), (5, 17)])
def test_the_engine_runs_the_matrix_products_that_are_counted(batch, context):
    with torch.device("meta"):  # shapes without numbers; the packed product of a CPU is unknown to the counter
        model = Decoder(toy(qkv_bias=True))
    for run, cost in (
        (passes.prefill_pass(model, context), counts.prefill_cost(model.config, context)),
        (passes.decode_pass(model, batch, context), counts.decode_cost(model.config, batch, context)),
    ):
        with FlopCounterMode(display=False) as counter:
            run()
        products = {str(op).removeprefix("aten."): n for op, n in counter.get_flop_counts()["Global"].items()}
        attention = products.pop("bmm")  # of every query with every key: in a prefill that is more than is needed
        assert sum(products.values()) == cost.linear_flops + cost.head_flops
        assert attention == 4 * model.config.layers * cost.tokens * context * 6 * 16


@pytest.mark.parametrize(
    ("new", "cached", "sequences", "form"),
    [(40, 0, 1, "plain"), (1, 39, 3, "absorbed"), (50, 10, 1, "plain"), (3, 50, 2, "absorbed")],
)
def test_latent_attention_runs_what_is_counted(new, cached, sequences, form):
    """In its cheaper form. A chunk multiplies every query with every key, which the causal count leaves out."""
    config = latent_config()
    with torch.device("meta"):
        model = Decoder(config)
    batch = Batch.build([[0] * new] * sequences, [cached] * sequences, range(sequences))
    cache = model.new_cache(sequences, cached + new)
    cache.lengths[:] = [cached] * sequences
    cost = counts.pass_cost(config, batch.query_lens, batch.cached_lens)
    with FlopCounterMode(display=False) as counter:
        model.run(batch, cache)
    mla, hidden_pairs = config.mla, new * (new - 1) // 2
    per_pair = {"plain": mla.qk_head_dim + mla.v_head_dim, "absorbed": mla.entry + mla.kv_lora_rank}[form]
    assert mla.cheaper(new, cached) == form
    not_needed = config.layers * sequences * 2 * config.heads * hidden_pairs * per_pair
    assert counter.get_total_flops() == cost.flops + not_needed
    assert cost.kv_read_bytes == sequences * cached * config.kv_bytes_per_token()


def test_latent_attention_brings_decode_near_the_ridge():
    """One entry serves 128 heads, so attention does 2 * 128 * 1,088 FLOP on the 1,152 bytes of a key."""
    v3 = facts.model("DeepSeek-V3")
    shape = dict(layers=61, hidden=7168, heads=128, kv_heads=128, head_dim=192, ffn=18432, vocab=129_280, context=4096)
    config = ModelConfig(architecture="deepseek_v3", mla=v3.mla, **shape)
    step = counts.decode_cost(config, batch=1, context=1000)
    assert step.attention_flops / (1000 * config.kv_bytes_per_token()) == pytest.approx(241.8, abs=0.1)
    assert counts.decode_flops_per_key(config) * 1000 == step.attention_flops
    grown = counts.decode_cost(config, 1, 1001).attention_flops - step.attention_flops
    assert grown == counts.decode_flops_per_key(config)
    assert counts.decode_flops_per_key(LLAMA) == 4 * 32 * 4096


def test_a_timed_pass_can_be_repeated():
    model = Decoder.random(toy())
    for run, rows in ((passes.prefill_pass(model, 9), 1), (passes.decode_pass(model, 3, 64), 3)):
        first, second = run(), run()
        assert first.shape == (rows, model.config.vocab)
        assert torch.equal(first, second), "the cache is as it was before the pass"


def test_chunks_cost_the_flops_of_one_prefill_but_read_weights_and_cache_again():
    config = toy(windows=(5, None, 5))
    with_sinks = counts.pass_cost(toy(windows=(5, None, 5), sinks=3), [4], [8])
    whole = counts.prefill_cost(config, 12)
    chunks = [counts.pass_cost(config, [4], [start]) for start in (0, 4, 8)]
    assert sum(chunk.linear_flops + chunk.attention_flops for chunk in chunks) == (
        whole.linear_flops + whole.attention_flops
    )
    assert sum(chunk.weight_bytes for chunk in chunks) == 3 * whole.weight_bytes
    assert sum(chunk.kv_write_bytes for chunk in chunks) == whole.kv_write_bytes
    assert whole.kv_read_bytes == 0 < chunks[2].kv_read_bytes
    # Layer with window 5 reads the 4 positions before the chunk's first token, the full layer all 8 cached ones.
    per_position = 2 * config.kv_heads * config.head_dim * 2
    assert chunks[2].kv_read_bytes == per_position * (4 + 8 + 4)
    assert with_sinks.kv_read_bytes == per_position * (7 + 8 + 7)


def test_bytes_of_a_decode_step_are_weights_once_and_every_position_of_the_cache():
    config = toy()
    params = 3 * (48 * (96 + 2 * 32) + 96 * 48 + 3 * 48 * 80) + 48 * 100
    cost = counts.decode_cost(config, batch=7, context=30, bytes_per_weight=4, bytes_per_kv=1)
    assert counts.matmul_params(config) == params
    assert cost.weight_bytes == 4 * params
    assert cost.kv_read_bytes == 7 * 29 * config.kv_bytes_per_token(1)
    assert cost.bytes == 4 * params + 7 * 30 * config.kv_bytes_per_token(1)
    assert cost.tokens == 7
    assert cost.intensity == cost.flops / cost.bytes


def test_tied_embeddings_still_cost_a_matrix_product():
    assert counts.matmul_params(toy(tied_embeddings=True)) == counts.matmul_params(toy(tied_embeddings=False))


def test_biases_and_norms_are_not_matrix_products():
    assert (
        counts.block_matrix_params(toy(qkv_bias=True))
        == counts.block_matrix_params(toy())
        == (toy().block_parameters())
    )


def test_grouped_query_attention_saves_bytes_not_attention_flops():
    grouped, full = counts.decode_cost(toy(), 1, 40), counts.decode_cost(toy(kv_heads=6), 1, 40)
    assert grouped.attention_flops == full.attention_flops
    assert grouped.kv_read_bytes * 3 == full.kv_read_bytes


@pytest.mark.parametrize(
    ("n", "linear_tflop", "attention_tflop", "decode_gflop"),
    [(512, 7.15, 0.07, 15.28), (8_192, 114.4, 17.6, 19.30), (131_072, 1_830, 4_504, 83.7)],
)
def test_llama_31_8b_figures(n, linear_tflop, attention_tflop, decode_gflop):
    prefill, decode = counts.prefill_cost(LLAMA, n), counts.decode_cost(LLAMA, 1, n)
    assert prefill.linear_flops / 1e12 == pytest.approx(linear_tflop, rel=2e-3)
    assert prefill.attention_flops / 1e12 == pytest.approx(attention_tflop, rel=2e-2)
    assert decode.flops / 1e9 == pytest.approx(decode_gflop, rel=1e-3)


def test_visible_pairs_by_enumeration():
    for n in range(12):
        for window in (None, 1, 4, 20):
            assert counts.visible_pairs(n, window) == sum(min(p + 1, window or n) for p in range(n))


def test_roofline_of_one_machine():
    machine = roofline.Machine("m", flops=100.0, bandwidth=10.0)
    assert machine.ridge == 10
    assert machine.attainable(3) == 30 and machine.attainable(10) == machine.attainable(99) == 100


def test_time_bound_names_its_limit():
    prefill = roofline.time_bound(counts.prefill_cost(LLAMA, 8_192), H100)
    decode = roofline.time_bound(counts.decode_cost(LLAMA, 1, 8_192), H100)
    assert (prefill.limit, decode.limit) == ("compute", "memory")
    assert prefill.seconds == prefill.compute > prefill.memory
    assert decode.seconds == decode.memory > decode.compute


def test_worked_latency_bounds():
    assert roofline.ttft_bound(LLAMA, H100, 8_192, mfu=0.5) == pytest.approx(0.267, abs=1e-3)
    # A prompt of one token is a decode step: bound by memory, so a low MFU does not change it.
    assert roofline.ttft_bound(LLAMA, H100, 1, mfu=0.5) == roofline.tpot_bound(LLAMA, H100, 1, 1)
    llama2 = facts.model("Llama-2-7B").config
    a100 = roofline.Machine.from_facts(facts.device("A100-80GB"))
    # Weights without the embedding table, 13.2 GB, and 4,096 positions of 524,288 bytes.
    assert roofline.tpot_bound(llama2, a100, 1, 4_096) == pytest.approx((13.215e9 + 2.147e9) / 2.039e12, rel=1e-3)


def test_critical_batch_of_the_linear_layers():
    assert roofline.critical_batch(H100) == pytest.approx(295, abs=1)
    assert roofline.critical_batch(H100, bytes_per_weight=0.5) == pytest.approx(74, abs=1)


def test_beyond_the_critical_context_no_batch_is_compute_bound():
    limit = roofline.critical_context(LLAMA, H100)
    assert limit == pytest.approx(393, abs=1)
    huge = 10**6
    for context, want in ((int(limit * 0.9), "compute"), (int(limit * 1.1), "memory")):
        assert roofline.time_bound(counts.decode_cost(LLAMA, huge, context), H100).limit == want
    assert counts.decode_cost(LLAMA, huge, 8_192).intensity == pytest.approx(18, abs=0.5)
    slow = roofline.Machine("slow arithmetic", flops=1e12, bandwidth=1e12)
    assert roofline.critical_context(LLAMA, slow) == math.inf


def test_machine_needs_a_known_peak():
    with pytest.raises(CourseError, match="Apple M2"):
        roofline.Machine.from_facts(facts.device("Apple M2"))


def test_measure_counts_only_warm_calls():
    calls = []
    taken = timing.measure(lambda: calls.append(len(calls)), repeats=5, warmup=2)
    assert len(calls) == 7 and len(taken.samples) == 5
    assert all(sample > 0 for sample in taken.samples)


def test_measure_keeps_three_samples_when_time_is_up():
    assert len(timing.measure(lambda: None, repeats=50, at_most_s=0.0).samples) == 3


def test_timing_quantiles_are_numpys():
    samples = (0.4, 0.1, 0.2, 0.9, 0.5, 0.3)
    taken = timing.Timing(samples)
    want = np.quantile(samples, [0.1, 0.5, 0.9])
    assert (taken.p10, taken.median, taken.p90) == pytest.approx(tuple(want))
    assert "6 samples" in str(taken)


def test_probe_reports_its_conditions_and_is_measured_once():
    machine = probe.probe("cpu")
    assert (machine.device, machine.threads, machine.dtype) == ("cpu", 1, "float32")
    assert probe.probe("cpu") is machine
    assert machine.flops == machine.best("matmul") > 0
    assert machine.bandwidth == max(machine.best("read"), machine.best("gemv"))
    assert all(reading.ceiling >= reading.rate for reading in machine.readings)
    reads = [reading for reading in machine.readings if reading.operation == "read"]
    assert len(reads) == 2 and reads[0].work < reads[1].work
    assert reads[0].work >= min(4 * probe.last_level_cache("cpu"), probe.LARGEST_TENSOR)
    copies = [reading for reading in machine.readings if reading.operation == "copy"]
    assert [copy.work for copy in copies] == [2 * read.work for read in reads], "a copy reads and writes"
    assert f"{reads[0].rate / 1e9:.1f} GB/s" in str(reads[0])


def test_read_bandwidth_states_its_bytes():
    reading = probe.read_bandwidth(1_000_000)
    assert reading.work == 1_000_000
    assert reading.rate == reading.work / reading.timing.median
