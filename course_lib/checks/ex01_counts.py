"""The first half of exercise 01: FLOPs counted from a config.

The references are the engine's own counts (`course_lib.perf`). Letters: L layers, h hidden, H query heads, K KV heads,
d head_dim, f ffn, V vocab.
"""

from __future__ import annotations

from random import Random
from typing import Any

from course_lib import facts
from course_lib.checks.core import Case, Mistake, Problem, Property
from course_lib.config import ModelConfig
from course_lib.perf.counts import pass_cost


def shape(L: int, h: int, H: int, K: int, d: int, f: int, V: int, tied: bool = False) -> ModelConfig:
    return ModelConfig("llama", L, h, H, K, d, f, V, context=1 << 20, tied_embeddings=tied)


# Small enough to multiply out by hand, with every letter different and d != h / H.
TOY = shape(L=2, h=8, H=6, K=3, d=4, f=10, V=50)
TIED = shape(L=2, h=8, H=6, K=3, d=4, f=10, V=50, tied=True)
LLAMA_8B = facts.model("Llama-3.1-8B").config
QWEN3_32B = facts.model("Qwen3-32B").config  # H * d = 8192, h = 5120


def random_shape(rng: Random) -> ModelConfig:
    K, group, d = rng.choice((1, 2, 3)), rng.choice((2, 4)), rng.choice((16, 32, 48))
    h = K * group * d + 16 * rng.choice((1, 3, 5))  # never H * d
    return shape(rng.randint(2, 9), h, K * group, K, d, 16 * rng.randint(9, 60), rng.randint(500, 5000))


def with_derived_head_dim(c: ModelConfig) -> ModelConfig:
    """The shape as it looks to someone who takes d = h // H."""
    return shape(c.layers, c.hidden, c.heads, c.kv_heads, c.hidden // c.heads, c.ffn, c.vocab)


def number(value: float) -> dict[str, float]:
    """A `want` for a function that returns one number."""
    return {"the result": value}


def proportional(factor: float):
    """A property's test: the second result is `factor` times the first."""

    def holds(views: list[dict[str, Any]]) -> str | None:
        a, b = (view["the result"] for view in views)
        return None if abs(b - factor * a) <= 1e-9 * abs(b) else f"got {a:.6g}, then {b:.6g}"

    return holds


# --- linear_flops ---


def linear_flops(config: ModelConfig, tokens: int, sequences: int) -> float:
    cost = pass_cost(config, [1] * (sequences - 1) + [tokens - sequences + 1], [0] * sequences)
    return cost.linear_flops + cost.head_flops


def linear_variant(c: ModelConfig, t: int, s: int, *, q=None, kv=None, out=1, ffn=3, layers=None, head=None) -> int:
    """2 * (L * block * tokens + lm_head), with one part replaced by a wrong one."""
    q, kv = q or c.heads * c.head_dim, kv or c.kv_heads * c.head_dim
    block = c.hidden * (q + 2 * kv + out * q) + ffn * c.hidden * c.ffn
    return 2 * ((layers or c.layers) * block * t + (c.hidden * c.vocab * s if head is None else head))


LINEAR_FLOPS = Problem(
    name="linear_flops",
    arguments=("config", "tokens", "sequences"),
    reference=linear_flops,
    public=lambda rng: [
        # A block has 8*24 (q) + 2*8*12 (k, v) + 24*8 (output) + 3*8*10 (FFN) = 816 weights, lm_head 8*50 = 400.
        Case("worked example", (TOY, 5, 1), number(2 * (2 * 816 * 5 + 400))),
        Case("edge case", (TOY, 1, 1), number(2 * (2 * 816 + 400))),
        Case("edge case", (TIED, 5, 1), number(2 * (2 * 816 * 5 + 400))),
        Property("twice the batch costs twice as much", ((TOY, 6, 2), (TOY, 12, 4)), proportional(2)),
        Case("reference", (LLAMA_8B, 2048, 1)),
        Case("reference", (QWEN3_32B, 64, 64)),
    ],
    hidden=lambda rng: [
        Case("reference", (random_shape(rng), tokens := rng.randint(2, 4096), rng.randint(1, tokens))) for _ in range(4)
    ],
    mistakes=(
        Mistake(
            "half-the-flops",
            "A multiply-add is 2 FLOP, one multiplication and one addition: each weight costs 2 FLOP per token.",
            lambda c, t, s: linear_flops(c, t, s) / 2,
        ),
        Mistake(
            "kv-sized-with-query-heads",
            "The key and value matrices have K * d columns. K counts KV heads, H query heads.",
            lambda c, t, s: linear_variant(c, t, s, kv=c.heads * c.head_dim),
        ),
        Mistake(
            "head-dim-derived",
            "d is config.head_dim, not hidden // heads: Qwen3-32B has 64 heads of 128 on a hidden size of 5,120.",
            lambda c, t, s: linear_flops(with_derived_head_dim(c), t, s),
        ),
        Mistake(
            "square-query-matrix",
            "The query matrix is h x (H * d) and the output matrix (H * d) x h; they are not h x h in every model.",
            lambda c, t, s: linear_variant(c, t, s, q=c.hidden),
        ),
        Mistake(
            "embedding-counted",
            "The input embedding is a look-up of one row per token, not a matrix product: it costs no FLOPs.",
            lambda c, t, s: linear_flops(c, t, s) + 2 * c.hidden * c.vocab * t,
        ),
        Mistake(
            "head-for-every-token",
            "lm_head runs for the last position of each sequence only: multiply it by `sequences`, not by `tokens`.",
            lambda c, t, s: linear_variant(c, t, s, head=c.hidden * c.vocab * t),
        ),
        Mistake(
            "head-left-out",
            "lm_head is left out: h * V weights, used once for each sequence.",
            lambda c, t, s: linear_variant(c, t, s, head=0),
        ),
        Mistake(
            "ungated-ffn",
            "A gated FFN (SwiGLU) has three matrices, gate, up and down: 3 * h * f weights.",
            lambda c, t, s: linear_variant(c, t, s, ffn=2),
        ),
        Mistake(
            "output-matrix-left-out",
            "Attention has a fourth matrix, the output projection: (H * d) x h.",
            lambda c, t, s: linear_variant(c, t, s, out=0),
        ),
        Mistake(
            "one-layer",
            "The weights of one block are counted; there are L blocks.",
            lambda c, t, s: linear_variant(c, t, s, layers=1),
        ),
    ),
)


# --- attention_flops ---


def attention_flops(config: ModelConfig, new: int, cached: int) -> float:
    return pass_cost(config, [new], [cached]).attention_flops


def per_pair(c: ModelConfig) -> int:
    """FLOPs of one query seeing one key: q.k and weight * v, each 2 * d, in every query head and layer."""
    return 4 * c.layers * c.heads * c.head_dim


ATTENTION_FLOPS = Problem(
    name="attention_flops",
    arguments=("config", "new", "cached"),
    reference=attention_flops,
    public=lambda rng: [
        # 3 new tokens after 2 cached ones see 3 + 4 + 5 = 12 keys; a pair costs 4*L*H*d = 4*2*6*4 = 192 FLOP.
        Case("worked example", (TOY, 3, 2), number(12 * 192)),
        Case("edge case", (TOY, 1, 0), number(192)),
        Case("edge case", (TOY, 1, 9), number(10 * 192)),
        Case("edge case", (TOY, 4, 0), number(10 * 192)),
        Property(
            "attention of 7 tokens in one pass, and the sum of 4 tokens and then 3 more, are equal",
            ((TOY, 7, 0), (TOY, 4, 0), (TOY, 3, 4)),
            lambda views: proportional(1)([views[0], number(sum(view["the result"] for view in views[1:]))]),
        ),
        Case("reference", (LLAMA_8B, 8192, 0)),
        Case("reference", (QWEN3_32B, 1, 32767)),
    ],
    hidden=lambda rng: [
        Case("reference", (random_shape(rng), rng.randint(1, 3000), cached))
        for cached in (0, rng.randint(1, 9), rng.randint(1000, 90_000))
    ],
    mistakes=(
        Mistake(
            "masked-half-counted",
            "A causal query sees the keys up to its own position: i-th new token, cached + i keys, not cached + new.",
            lambda c, n, t: per_pair(c) * n * (t + n),
        ),
        Mistake(
            "half-square",
            "1 + 2 + ... + n is n * (n + 1) / 2; n * n / 2 leaves out half of each token looking at itself.",
            lambda c, n, t: per_pair(c) * (n * t + n * n / 2),
        ),
        Mistake(
            "own-token-left-out",
            "A token attends to itself as well: the first of a prompt sees 1 key, not 0.",
            lambda c, n, t: per_pair(c) * (n * t + n * (n - 1) // 2),
        ),
        Mistake(
            "kv-heads-for-query-heads",
            "Every query head computes its own scores: use H. Grouped-query attention saves bytes here, not FLOPs.",
            lambda c, n, t: attention_flops(c, n, t) * c.kv_heads / c.heads,
        ),
        Mistake(
            "one-of-two-products",
            "There are two products, q with the keys and the weights with the values: 2 * d + 2 * d FLOP a pair.",
            lambda c, n, t: attention_flops(c, n, t) / 2,
        ),
        Mistake(
            "cache-ignored",
            "The cached keys are seen by every new token: each new token adds `cached` pairs.",
            lambda c, n, t: attention_flops(c, n, 0),
        ),
        Mistake(
            "one-layer",
            "One layer's attention is counted; there are L.",
            lambda c, n, t: attention_flops(c, n, t) / c.layers,
        ),
        Mistake(
            "head-dim-derived",
            "d is config.head_dim, not hidden // heads: Qwen3-32B has 64 heads of 128 on a hidden size of 5,120.",
            lambda c, n, t: attention_flops(with_derived_head_dim(c), n, t),
        ),
    ),
)
