"""Exercise 10, third part: what it costs to bring a preempted request back.

Letters: n tokens of the request in the cache, c of them still found in the prefix cache, b bytes per KV element.
"""

from __future__ import annotations

from random import Random
from typing import Any

from course_lib.checks.core import Case, Mistake, Problem, Property, members
from course_lib.checks.ex01_counts import LLAMA_8B, TOY, random_shape
from course_lib.config import ModelConfig
from course_lib.perf.counts import pass_cost

both = members("recompute", "swap")
A100 = 312e12  # peak FLOP/s, dense 16-bit (facts/hardware.json)
PCIE4 = 16e9 * 16 * 128 / 130 / 8  # bytes/s of 16 lanes at 16 GT/s, 128 of 130 bits are data


def resume_seconds(
    config: ModelConfig, tokens: int, cached: int, bytes_per_kv: float, flops: float, link: float
) -> tuple[float, float]:
    return _resume(config, tokens, cached, bytes_per_kv, flops, link)


def _prefill(c: ModelConfig, n: int, cached: int) -> float:
    return pass_cost(c, [n - cached], [cached]).flops


def _resume(c, n, cached, b, flops, link, *, work=_prefill, moved=lambda n, c: 2 * n - c, token=None):
    """(recompute, swap), with one part replaced by a wrong one. moved: tokens over the link. token: bytes of one."""
    token = c.kv_bytes_per_token(b) if token is None else token
    return work(c, n, cached) / flops, moved(n, cached) * token / link


def _inverse_to_speed(views: list[dict[str, Any]]) -> str | None:
    slow, fast = views
    for name in ("recompute", "swap"):
        if abs(slow[name] - 2 * fast[name]) > 1e-9 * slow[name]:
            return f"{name} took {slow[name]:.6g} s, then {fast[name]:.6g} s"
    return None


def _resume_case(rng: Random) -> Case:
    tokens = rng.randint(100, 20_000)
    machine = rng.uniform(1e11, 1e15), rng.uniform(1e9, 1e11)
    return Case("reference", (random_shape(rng), tokens, rng.randint(1, tokens - 1), rng.choice((1, 2, 4)), *machine))


RESUME_SECONDS = Problem(
    name="resume_seconds",
    arguments=("config", "tokens", "cached", "bytes_per_kv", "flops", "link"),
    reference=resume_seconds,
    view=both,
    public=lambda rng: [
        # 3 tokens: 2 FLOP * 2 layers * 816 weights * 3 + 2 * 400 (lm_head) + 4 * 2 layers * 6 heads * 4 * 6 pairs.
        # Swap: 3 tokens of 2 * 2 layers * 3 KV heads * 4 = 48 numbers of 2 bytes, out and back: 576 bytes.
        Case("worked example", (TOY, 3, 0, 2, 1000.0, 100.0), {"recompute": 11.744, "swap": 5.76}),
        # 1 of 3 tokens is cached: 2 are fed, which see 2 + 3 keys; 3 are copied out and 2 come back.
        Case("edge case", (TOY, 3, 1, 2, 1000.0, 100.0), {"recompute": 8.288, "swap": 4.8}),
        Case("edge case", (TOY, 1, 0, 1, 1000.0, 100.0)),
        Property(
            "twice the speed of both, half the time of both",
            ((LLAMA_8B, 900, 128, 2, A100 / 2, PCIE4 / 2), (LLAMA_8B, 900, 128, 2, A100, PCIE4)),
            _inverse_to_speed,
        ),
        Case("reference", (LLAMA_8B, 8192, 0, 2, A100 / 2, PCIE4)),
        Case("reference", (LLAMA_8B, 8192, 8000, 1, A100 / 2, PCIE4)),
    ],
    hidden=lambda rng: [_resume_case(rng) for _ in range(4)],
    mistakes=(
        Mistake(
            "cached-prefix-recomputed",
            "Recompute feeds only the tokens that the prefix cache has lost: tokens - cached of them.",
            lambda *a: _resume(*a, work=lambda c, n, cached: _prefill(c, n, 0)),
        ),
        Mistake(
            "cached-prefix-not-seen",
            "The tokens that are fed again attend to the cached prefix too: they start behind `cached` tokens.",
            lambda *a: _resume(*a, work=lambda c, n, cached: _prefill(c, n - cached, 0)),
        ),
        Mistake(
            "attention-left-out",
            "Recompute is a prefill: attention counts beside the linear layers, and grows with the length squared.",
            lambda *a: _resume(
                *a,
                work=lambda c, n, cached: _prefill(c, n, cached) - pass_cost(c, [n - cached], [cached]).attention_flops,
            ),
        ),
        Mistake(
            "bytes-for-flops",
            "Recompute takes FLOPs at `flops` per second; here the bytes of the pass are divided by it.",
            lambda *a: _resume(*a, work=lambda c, n, cached: pass_cost(c, [n - cached], [cached]).bytes),
        ),
        Mistake(
            "swap-one-way",
            "The blocks go out to host memory and come back: two transfers.",
            lambda *a: _resume(*a, moved=lambda n, c: n),
        ),
        Mistake(
            "swap-back-only",
            "Swapping out takes the link as well: all tokens go out, and those that are not cached come back.",
            lambda *a: _resume(*a, moved=lambda n, c: n - c),
        ),
        Mistake(
            "prefix-copied-back",
            "What the prefix cache still has is not copied back: only tokens - cached return.",
            lambda *a: _resume(*a, moved=lambda n, c: 2 * n),
        ),
        Mistake(
            "prefix-not-copied-out",
            "When the request goes, nobody knows what will still be cached later: all its tokens are copied out.",
            lambda *a: _resume(*a, moved=lambda n, c: 2 * (n - c)),
        ),
        Mistake(
            "keys-without-values",
            "A token leaves a key and a value in every layer: the factor 2 in its bytes, beside the two transfers.",
            lambda c, n, cached, b, *speed: _resume(c, n, cached, b / 2, *speed),
        ),
        Mistake(
            "one-layer",
            "Every layer has its own keys and values: the factor L in the bytes of a token.",
            lambda c, n, cached, b, *speed: _resume(c, n, cached, b / c.layers, *speed),
        ),
        Mistake(
            "query-heads",
            "The cache holds K KV heads, not H query heads: config.kv_heads.",
            lambda c, n, cached, b, *speed: _resume(c, n, cached, b * c.heads / c.kv_heads, *speed),
        ),
        Mistake(
            "bits-for-bytes",
            "link is in bytes per second already: do not turn the bytes into bits.",
            lambda c, n, cached, b, *speed: _resume(c, n, cached, 8 * b, *speed),
        ),
        Mistake(
            "wrong-way-round",
            "The result is (recompute, swap), in this order.",
            lambda *a: resume_seconds(*a)[::-1],
        ),
    ),
)
