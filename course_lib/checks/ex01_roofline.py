"""The second half of exercise 01: bytes of a decode step, and what the roofline makes of them."""

from __future__ import annotations

from course_lib.checks.core import Case, Mistake, Problem, Property
from course_lib.checks.ex01_counts import (
    LLAMA_8B,
    QWEN3_32B,
    TIED,
    TOY,
    number,
    proportional,
    random_shape,
    with_derived_head_dim,
)
from course_lib.config import ModelConfig
from course_lib.perf.counts import decode_cost, matmul_params
from course_lib.perf.roofline import Bound, Machine, critical_batch

A100 = (312e12, 2039e9)  # FLOP/s and bytes/s of the 80 GB A100's data sheet, dense 16 bit


# --- step_bytes ---


def step_bytes(config: ModelConfig, batch: int, context: int, bytes_per_weight: float, bytes_per_kv: float) -> float:
    return decode_cost(config, batch, context, bytes_per_weight, bytes_per_kv).bytes


def weights(c: ModelConfig, bytes_per_weight: float) -> float:
    return matmul_params(c) * bytes_per_weight


STEP_BYTES = Problem(
    name="step_bytes",
    arguments=("config", "batch", "context", "bytes_per_weight", "bytes_per_kv"),
    reference=step_bytes,
    public=lambda rng: [
        # P = 2*816 + 8*50 = 2,032 weights of 2 bytes; a token's KV is 2*L*K*d = 48 elements of 1 byte; 5*7 tokens.
        Case("worked example", (TOY, 5, 7, 2, 1), number(2 * 2032 + 5 * 7 * 48)),
        Case("edge case", (TOY, 1, 1, 2, 1), number(2 * 2032 + 48)),
        Case("edge case", (TIED, 5, 7, 2, 1), number(2 * 2032 + 5 * 7 * 48)),
        Case("edge case", (TOY, 5, 7, 0.5, 1), number(1016 + 5 * 7 * 48)),
        Case("reference", (LLAMA_8B, 16, 8192, 2, 2)),
        Case("reference", (QWEN3_32B, 1, 32768, 1, 2)),
    ],
    hidden=lambda rng: [
        Case("reference", (random_shape(rng), rng.randint(2, 64), rng.randint(2, 9000), rng.choice((0.5, 1)), b))
        for b in (2, 4)
    ],
    mistakes=(
        Mistake(
            "kv-left-out",
            "Only the weights are counted. A step also reads the cached keys and values of every sequence.",
            lambda c, B, n, b_w, b: weights(c, b_w),
        ),
        Mistake(
            "kv-sized-with-query-heads",
            "The cache holds K KV heads, not H query heads: a token's KV is 2 * L * K * d * b bytes.",
            lambda c, B, n, b_w, b: weights(c, b_w) + B * n * c.kv_bytes_per_token(b) * c.heads / c.kv_heads,
        ),
        Mistake(
            "keys-without-values",
            "A token leaves a key and a value vector: the factor 2 in 2 * L * K * d * b.",
            lambda c, B, n, b_w, b: weights(c, b_w) + B * n * c.kv_bytes_per_token(b) / 2,
        ),
        Mistake(
            "kv-of-one-sequence",
            "Each of the B sequences has its own cache: the KV bytes grow with the batch.",
            lambda c, B, n, b_w, b: weights(c, b_w) + n * c.kv_bytes_per_token(b),
        ),
        Mistake(
            "weights-for-every-sequence",
            "The weights are read once a step, whatever the batch: that is what batching saves.",
            lambda c, B, n, b_w, b: B * weights(c, b_w) + B * n * c.kv_bytes_per_token(b),
        ),
        Mistake(
            "weight-bytes-for-kv",
            "Weights and cache have their own formats: use bytes_per_kv for the cache.",
            lambda c, B, n, b_w, b: step_bytes(c, B, n, b_w, b_w),
        ),
        Mistake(
            "embedding-counted",
            "A step reads one row of the input embedding per token, not the table. Count the blocks and lm_head.",
            lambda c, B, n, b_w, b: step_bytes(c, B, n, b_w, b) + c.hidden * c.vocab * b_w,
        ),
        Mistake(
            "head-left-out",
            "lm_head is left out: its h * V weights are read in every step, also when it is tied to the embedding.",
            lambda c, B, n, b_w, b: step_bytes(c, B, n, b_w, b) - c.hidden * c.vocab * b_w,
        ),
        Mistake(
            "head-dim-derived",
            "d is config.head_dim, not hidden // heads: Qwen3-32B has 64 heads of 128 on a hidden size of 5,120.",
            lambda c, B, n, b_w, b: step_bytes(with_derived_head_dim(c), B, n, b_w, b),
        ),
        Mistake(
            "gib-for-bytes",
            "The result is in bytes; do not divide it by 2**30 (GiB) or 1e9 (GB).",
            lambda c, B, n, b_w, b: step_bytes(c, B, n, b_w, b) / 2**30,
        ),
        Mistake(
            "gb-for-bytes",
            "The result is in bytes; do not divide it by 2**30 (GiB) or 1e9 (GB).",
            lambda c, B, n, b_w, b: step_bytes(c, B, n, b_w, b) / 1e9,
        ),
    ),
)


# --- attainable ---


def attainable(intensity: float, peak: float, bandwidth: float) -> float:
    return Machine("", peak, bandwidth).attainable(intensity)


ATTAINABLE = Problem(
    name="attainable",
    arguments=("intensity", "peak", "bandwidth"),
    reference=attainable,
    public=lambda rng: [
        Case("worked example", (3, 100.0, 10.0), number(30.0)),
        Case("edge case", (10, 100.0, 10.0), number(100.0)),
        Case("edge case", (40, 100.0, 10.0), number(100.0)),
        Property("under the ridge, twice the intensity is twice as fast", ((1, *A100), (2, *A100)), proportional(2)),
        Case("reference", (1, *A100)),
        Case("reference", (1000, *A100)),
    ],
    hidden=lambda rng: [
        Case("reference", (ridge * factor, ridge * 1e12, 1e12))
        for ridge in (rng.uniform(20, 400),)
        for factor in (0.01, 0.9, 1.1, 50)
    ],
    mistakes=(
        Mistake(
            "max-for-min",
            "Both ceilings hold at once, so the lower one counts: min, not max.",
            lambda i, F, BW: max(F, i * BW),
        ),
        Mistake(
            "memory-roof-only",
            "I * BW has no end, but the arithmetic units have: nothing runs faster than the peak.",
            lambda i, F, BW: i * BW,
        ),
        Mistake("compute-roof-only", "At low intensity the memory sets the pace: I * BW FLOP/s.", lambda i, F, BW: F),
        Mistake(
            "divided-by-intensity",
            "Intensity is FLOP per byte: FLOP/byte times bytes/s is FLOP/s.",
            lambda i, F, BW: min(F, BW / i),
        ),
        Mistake(
            "share-of-peak",
            "The result is in FLOP/s, not a share of the peak.",
            lambda i, F, BW: attainable(i, F, BW) / F,
        ),
    ),
)


# --- ridge_batch ---


def ridge_batch(peak: float, bandwidth: float, bytes_per_weight: float) -> float:
    return critical_batch(Machine("", peak, bandwidth), bytes_per_weight)


RIDGE_BATCH = Problem(
    name="ridge_batch",
    arguments=("peak", "bandwidth", "bytes_per_weight"),
    reference=ridge_batch,
    public=lambda rng: [
        # Ridge 100 / 10 = 10 FLOP/byte; a batch of B does 2*B FLOP per weight of 4 bytes, so 2*B/4 = 10 at B = 20.
        Case("worked example", (100.0, 10.0, 4), number(20.0)),
        Case("edge case", (100.0, 10.0, 2), number(10.0)),
        Case("edge case", (100.0, 10.0, 0.5), number(2.5)),
        Property("half the bytes per weight, half the batch", ((*A100, 2), (*A100, 1)), proportional(0.5)),
        Case("reference", (*A100, 2)),
    ],
    hidden=lambda rng: [Case("reference", (rng.uniform(1e12, 1e15), rng.uniform(1e11, 8e12), b)) for b in (0.5, 1, 4)],
    mistakes=(
        Mistake(
            "ridge-point-itself",
            "F / BW is the ridge point in FLOP/byte. A batch of B reaches 2 * B / b_w FLOP/byte: solve for B.",
            lambda F, BW, b: F / BW,
        ),
        Mistake(
            "multiply-add-as-one",
            "A weight does 2 FLOP for each sequence: the intensity is 2 * B / b_w, not B / b_w.",
            lambda F, BW, b: F / BW * b,
        ),
        Mistake(
            "bytes-divide",
            "Wider weights need a larger batch to reach the ridge: multiply by bytes_per_weight, do not divide.",
            lambda F, BW, b: F / BW * 2 / b,
        ),
        Mistake(
            "ridge-upside-down",
            "The ridge point is F / BW, FLOP/s over bytes/s; BW / F is its inverse.",
            lambda F, BW, b: BW / F * b / 2,
        ),
        Mistake(
            "bits-for-bytes",
            "bytes_per_weight is already in bytes: 0.5 for int4.",
            lambda F, BW, b: F / BW * b / 16,
        ),
    ),
)


# --- step_seconds ---


def step_seconds(work: float, traffic: float, peak: float, bandwidth: float) -> float:
    return Bound(compute=work / peak, memory=traffic / bandwidth).seconds


STEP_SECONDS = Problem(
    name="step_seconds",
    arguments=("work", "traffic", "peak", "bandwidth"),
    reference=step_seconds,
    public=lambda rng: [
        Case("worked example", (200.0, 60.0, 100.0, 10.0), number(6.0)),  # 2 s of arithmetic, 6 s of reading
        Case("edge case", (900.0, 60.0, 100.0, 10.0), number(9.0)),
        Case("edge case", (600.0, 60.0, 100.0, 10.0), number(6.0)),
        Property(
            "twice the traffic and twice the work take twice as long",
            ((1e9, 1e9, *A100), (2e9, 2e9, *A100)),
            proportional(2),
        ),
        Case("reference", (1.5e10, 1.5e10, *A100)),
        Case("reference", (4e15, 1.5e10, *A100)),
    ],
    hidden=lambda rng: [
        Case("reference", (rng.uniform(1, 2) * work, rng.uniform(1e9, 2e9), *A100)) for work in (1e9, 1e11, 1e12, 1e14)
    ],
    mistakes=(
        Mistake(
            "times-added",
            "A lower bound lets reading and arithmetic overlap: the longer of the two counts, not their sum.",
            lambda w, t, F, BW: w / F + t / BW,
        ),
        Mistake(
            "min-for-max",
            "The step ends when the slower part does: max, not min.",
            lambda w, t, F, BW: min(w / F, t / BW),
        ),
        Mistake(
            "bytes-only",
            "The arithmetic can be the slower part, in a prefill or a large batch: take work / peak into account.",
            lambda w, t, F, BW: t / BW,
        ),
        Mistake(
            "flops-only",
            "Reading is the slower part in most decode steps: take traffic / bandwidth into account.",
            lambda w, t, F, BW: w / F,
        ),
        Mistake("milliseconds", "The result is in seconds.", lambda w, t, F, BW: 1e3 * step_seconds(w, t, F, BW)),
        Mistake(
            "units-crossed",
            "FLOPs are divided by FLOP/s and bytes by bytes/s; here they are crossed.",
            lambda w, t, F, BW: max(w / BW, t / F),
        ),
        Mistake(
            "steps-per-second",
            "The result is the time of a step, not steps per second.",
            lambda w, t, F, BW: 1 / step_seconds(w, t, F, BW),
        ),
    ),
)
