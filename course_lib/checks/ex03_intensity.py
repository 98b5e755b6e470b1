"""Exercise 03, second part: FLOPs of decode attention for each byte that it reads.

Letters as in `ex03_bytes`; B sequences in the batch. A multiply-add is 2 FLOP, and the bytes are those of the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from course_lib import facts
from course_lib.checks.compare import compare
from course_lib.checks.core import Case, Mistake, Problem, Property
from course_lib.checks.ex01_counts import LLAMA_8B, TOY, number, random_shape
from course_lib.checks.ex03_bytes import DEEPSEEK_V3, LATENT, random_latent
from course_lib.config import ModelConfig

LLAMA_70B = facts.model("Llama-3.1-70B").config


def attention_intensity(config: ModelConfig, batch: int, tokens: int, bytes_per_element: float) -> float:
    return _ratio(config, batch, tokens, bytes_per_element)


def _ratio(
    c: ModelConfig,
    batch: int,
    n: int,
    b: float,
    *,
    flops: Callable[[ModelConfig], float] = lambda c: 4 * c.heads * c.head_dim,
    read: Callable[[ModelConfig], float] = lambda c: 2 * c.kv_heads * c.head_dim,
    latent_flops: Callable[[ModelConfig], float] = lambda c: 2 * c.heads * (c.mla.entry + c.mla.kv_lora_rank),
    latent_read: Callable[[ModelConfig], float] = lambda c: c.mla.entry,
) -> float:
    """FLOPs of one key of one layer over elements read times b, with one part replaced by a wrong one."""
    work, elements = (latent_flops(c), latent_read(c)) if c.mla else (flops(c), read(c))
    return work / (elements * b)


def _wrong(**parts) -> Callable[..., float]:
    return lambda *args: _ratio(*args, **parts)


def _same(views: list[dict[str, Any]]) -> str | None:
    first, *others = views
    return next((d.text for view in others if (d := compare(view, first))), None)


def _public(rng: Random) -> list[Case | Property]:
    return [
        # A key costs 4 * 6 heads * 4 = 96 FLOP and lies in 2 * 3 KV heads * 4 = 24 elements, 48 bytes.
        Case("worked example", (TOY, 5, 10, 2), number(2)),
        # 6 heads: 2 * (8 + 2) FLOP with the key and 2 * 8 with the value, which is part of it: 216 FLOP, 20 bytes.
        Case("worked example", (LATENT, 5, 10, 2), number(10.8)),
        Case("edge case", (replace(TOY, kv_heads=6), 5, 10, 2), number(1)),  # multi-head attention
        Case("edge case", (replace(TOY, kv_heads=1), 5, 10, 2), number(6)),  # multi-query attention
        Case("edge case", (TOY, 5, 10, 1), number(4)),
        Property("the batch changes nothing", ((TOY, 1, 10, 2), (TOY, 64, 10, 2)), _same),
        Property("the length changes nothing", ((TOY, 5, 10, 2), (TOY, 5, 4000, 2)), _same),
        Case("reference", (LLAMA_8B, 1, 4096, 2), number(4)),
        Case("reference", (LLAMA_70B, 32, 4096, 2), number(8)),
        Case("reference", (DEEPSEEK_V3, 32, 4096, 2)),
    ]


def _hidden(rng: Random) -> list[Case]:
    return [
        Case("reference", (config, rng.randint(2, 64), rng.randint(2, 9000), b))
        for config, b in ((random_shape(rng), 2), (random_shape(rng), 0.5), (random_latent(rng), 1))
    ]


ATTENTION_INTENSITY = Problem(
    name="attention_intensity",
    arguments=("config", "batch", "tokens", "bytes_per_element"),
    reference=attention_intensity,
    public=_public,
    hidden=_hidden,
    mistakes=(
        Mistake(
            "half-of-the-flops",
            "A head does two products for each position, q . k and weight * v, and a multiply-add is 2 FLOP: 4d.",
            lambda *a: _ratio(*a) / 2,
        ),
        Mistake(
            "as-many-heads-above-as-below",
            "The H query heads all do their own products, and share the K KV heads that are read: H above, K below.",
            _wrong(read=lambda c: 2 * c.heads * c.head_dim),
        ),
        Mistake(
            "upside-down",
            "Intensity is FLOPs for each byte, not bytes for each FLOP.",
            lambda *a: 1 / _ratio(*a),
        ),
        Mistake(
            "heads-exchanged",
            "H query heads compute, K KV heads are read: the ratio grows with H / K.",
            _wrong(
                flops=lambda c: 4 * c.kv_heads * c.head_dim,
                read=lambda c: 2 * c.heads * c.head_dim,
            ),
        ),
        Mistake(
            "cache-read-once-for-all",
            "Weights are read once for the whole batch. Each sequence has its own cache, so a batch reads B of them.",
            lambda c, batch, n, b: batch * _ratio(c, batch, n, b),
        ),
        Mistake(
            "bytes-of-one-key",
            "The query meets all n keys, and all n are read: n stands above and below.",
            lambda c, batch, n, b: n * _ratio(c, batch, n, b),
        ),
        Mistake(
            "flops-of-one-key",
            "All n keys are read, and the query meets all n: n stands above and below.",
            lambda c, batch, n, b: _ratio(c, batch, n, b) / n,
        ),
        Mistake(
            "only-keys-read",
            "Keys and values are both read: 2 * K * d elements for each position.",
            _wrong(read=lambda c: c.kv_heads * c.head_dim),
        ),
        Mistake(
            "flops-for-each-element",
            "That counts elements read; each takes `bytes_per_element` bytes.",
            lambda c, batch, n, b: _ratio(c, batch, n, 1),
        ),
        Mistake(
            "one-head-computes",
            "All H heads compute: the factor H in the FLOPs.",
            lambda c, *a: _ratio(c, *a) / c.heads,
        ),
        Mistake(
            "latent-as-heads",
            "With config.mla all heads read one entry of r + p elements, the latent and the rotated key.",
            _wrong(
                latent_flops=lambda c: 4 * c.heads * c.head_dim,
                latent_read=lambda c: 2 * c.heads * c.head_dim,
            ),
        ),
        Mistake(
            "plain-form",
            "In the absorbed form a head works on the latent: r + p products for the key and r for the value.",
            _wrong(latent_flops=lambda c: 2 * c.heads * (c.head_dim + c.mla.v_head_dim)),
        ),
        Mistake(
            "value-as-long-as-key",
            "The key has r + p elements and the value r of them: 2H(r + p) + 2Hr FLOP, and r + p elements are read.",
            _wrong(latent_flops=lambda c: 4 * c.heads * c.mla.entry),
        ),
        Mistake(
            "latent-read-twice",
            "The first r elements of the entry are the value too: r + p elements are read, without a factor 2.",
            _wrong(latent_read=lambda c: 2 * c.mla.entry),
        ),
    ),
)
