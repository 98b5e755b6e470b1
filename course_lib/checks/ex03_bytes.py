"""Exercise 03, first part: the cache bytes of a sequence, whatever its layers keep of it.

Letters: L layers, h hidden, H query heads, K KV heads, d size of a head, w window of a layer, n tokens, b bytes per
element. Latent attention: r elements of the latent, p of the rotated key, a of a head's query without the rotated
part, v of a head's value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from course_lib import facts
from course_lib.checks.core import Case, Mistake, Problem, Property
from course_lib.checks.ex01_counts import LLAMA_8B, TOY, number, proportional, random_shape
from course_lib.config import ModelConfig
from course_lib.mla_shape import MlaShape

CacheBytes = Callable[[ModelConfig, int, float], float]


def cache_bytes(config: ModelConfig, tokens: int, bytes_per_element: float) -> float:
    return config.kv_bytes(tokens, bytes_per_element)


def latent(config: ModelConfig, r: int, p: int, a: int, v: int) -> ModelConfig:
    """The same decoder with latent attention; its K and d are then those of the plain form, H and a + p."""
    return replace(config, kv_heads=config.heads, head_dim=a + p, mla=MlaShape(r, None, a, p, v))


LATENT = latent(TOY, r=8, p=2, a=5, v=4)
WINDOWED = replace(TOY, windows=(4, None))
GEMMA_27B = facts.model("Gemma-3-27B").config
_V3 = facts.model("DeepSeek-V3")  # a mixture of experts, so it has no ModelConfig of its own
DEEPSEEK_V3 = replace(
    TOY, layers=_V3.layers, heads=_V3.heads, kv_heads=_V3.heads, head_dim=_V3.mla.qk_head_dim, mla=_V3.mla, windows=()
)


def _sum(
    c: ModelConfig,
    n: int,
    b: float,
    *,
    entry: Callable[[ModelConfig], float] = lambda c: 2 * c.kv_heads * c.head_dim,
    latent: Callable[[ModelConfig], float] = lambda c: c.mla.entry,
    kept: Callable[[int, int], int] = min,
    windows: Callable[[ModelConfig], tuple] = lambda c: c.windows,
) -> float:
    """The sum over the layers, with one part replaced by a wrong one.

    entry, latent: elements that a token leaves in a layer. kept(n, w): tokens that a layer with a window keeps.
    """
    elements = latent(c) if c.mla else entry(c)
    return elements * b * sum(n if w is None else kept(n, w) for w in windows(c))


def _wrong(**parts) -> CacheBytes:
    return lambda c, n, b: _sum(c, n, b, **parts)


def _public(rng: Random) -> list[Case | Property]:
    return [
        # 2 (K and V) * 3 KV heads * 4 = 24 elements a token and layer; 10 tokens, 2 layers, 2 bytes.
        Case("worked example", (TOY, 10, 2), number(24 * 10 * 2 * 2)),
        # A window of 4 in the first layer: 4 tokens there, 10 in the second.
        Case("worked example", (WINDOWED, 10, 2), number(24 * (4 + 10) * 2)),
        # The latent and the rotated key: 8 + 2 elements a token and layer.
        Case("worked example", (LATENT, 10, 2), number(10 * 10 * 2 * 2)),
        Case("edge case", (WINDOWED, 3, 2), number(24 * (3 + 3) * 2)),
        Case("edge case", (TOY, 0, 2), number(0)),
        Case("edge case", (replace(TOY, kv_heads=6), 10, 1), number(2 * 6 * 4 * 10 * 2)),  # multi-head attention
        Case("edge case", (replace(TOY, kv_heads=1), 10, 1), number(2 * 1 * 4 * 10 * 2)),  # multi-query attention
        Property(
            "without windows, twice the tokens take twice the bytes", ((TOY, 7, 2), (TOY, 14, 2)), proportional(2)
        ),
        Case("reference", (LLAMA_8B, 1, 2), number(131_072)),
        Case("reference", (DEEPSEEK_V3, 1, 2), number(70_272)),
        Case("reference", (GEMMA_27B, 32_768, 2), number(3_120_562_176)),
    ]


def random_latent(rng: Random) -> ModelConfig:
    r, p, a, v = (16 * rng.randint(low, low + 5) for low in (12, 2, 8, 8))
    return latent(random_shape(rng), r, p, a, v)


def _random_windows(rng: Random, window: int) -> ModelConfig:
    plain = random_shape(rng)
    return replace(plain, windows=(window, None, *(rng.choice((window, None)) for _ in range(plain.layers - 2))))


def _hidden(rng: Random) -> list[Case]:
    return [
        *(Case("reference", (random_shape(rng), rng.randint(2, 40_000), b)) for b in (0.5, 1)),
        Case("reference", (_random_windows(rng, rng.randint(100, 900)), rng.randint(1000, 9000), 2)),
        Case("reference", (_random_windows(rng, rng.randint(100, 900)), rng.randint(2, 99), 1)),
        Case("reference", (random_latent(rng), rng.randint(2, 40_000), 2)),
    ]


CACHE_BYTES = Problem(
    name="cache_bytes",
    arguments=("config", "tokens", "bytes_per_element"),
    reference=cache_bytes,
    public=_public,
    hidden=_hidden,
    mistakes=(
        Mistake(
            "heads-for-kv-heads",
            "The cache holds K KV heads, not H query heads: that is what grouped-query attention saves.",
            _wrong(entry=lambda c: 2 * c.heads * c.head_dim),
        ),
        Mistake(
            "group-for-kv-heads",
            "H / K is how many query heads share a KV head. The cache holds K heads: config.kv_heads.",
            _wrong(entry=lambda c: 2 * c.group * c.head_dim),
        ),
        Mistake(
            "key-without-value",
            "A token leaves a key and a value in every layer: the factor 2.",
            _wrong(entry=lambda c: c.kv_heads * c.head_dim),
        ),
        Mistake(
            "d-from-hidden",
            "d is config.head_dim, not hidden // heads: the two are equal in some models only.",
            _wrong(entry=lambda c: 2 * c.kv_heads * (c.hidden // c.heads)),
        ),
        Mistake(
            "layers-left-out",
            "Every layer has a cache of its own: sum over the layers.",
            lambda c, n, b: _sum(c, n, b) / c.layers,
        ),
        Mistake(
            "of-one-token",
            "That is one token's share; the sequence has `tokens` of them.",
            lambda c, n, b: _sum(c, 1, b),
        ),
        Mistake(
            "elements-for-bytes",
            "That counts elements; each takes `bytes_per_element` bytes.",
            lambda c, n, b: _sum(c, n, 1),
        ),
        Mistake(
            "windows-counted-full",
            "A layer with a window w keeps the last w tokens: min(n, w) of them, not all n.",
            _wrong(kept=lambda n, w: n),
        ),
        Mistake(
            "window-in-every-layer",
            "Only some layers have a window: config.windows holds one entry for each layer, None where there is none.",
            _wrong(windows=lambda c: (min((w for w in c.windows if w), default=None),) * c.layers),
        ),
        Mistake(
            "window-always-full",
            "A sequence shorter than the window leaves only its own n tokens: min(n, w).",
            _wrong(kept=lambda n, w: w),
        ),
        Mistake(
            "larger-of-the-two",
            "The window is an upper limit of what a layer keeps: the smaller of n and w, not the larger.",
            _wrong(kept=max),
        ),
        Mistake(
            "layer-with-window-is-free",
            "A layer with a window still keeps its last w tokens.",
            _wrong(kept=lambda n, w: 0),
        ),
        Mistake(
            "latent-twice",
            "The latent is key and value at once, and is stored once: no factor 2.",
            _wrong(latent=lambda c: 2 * c.mla.entry),
        ),
        Mistake(
            "latent-and-value-apart",
            "The value is made from the latent that serves as key: r is counted once, and so is p.",
            _wrong(latent=lambda c: c.mla.entry + c.mla.kv_lora_rank),
        ),
        Mistake(
            "rotated-key-left-out",
            "RoPE cannot be folded into the matrices, so the p elements of the rotated key are cached too: r + p.",
            _wrong(latent=lambda c: c.mla.kv_lora_rank),
        ),
        Mistake(
            "latent-for-each-head",
            "One latent and one rotated key serve all H heads.",
            _wrong(latent=lambda c: c.heads * c.mla.entry),
        ),
        Mistake(
            "rotated-key-for-each-head",
            "All H heads share one rotated key: p elements, not H * p.",
            _wrong(latent=lambda c: c.mla.kv_lora_rank + c.heads * c.mla.qk_rope_head_dim),
        ),
        Mistake(
            "latent-as-full-heads",
            "With config.mla the cache holds no keys of H heads: r + p elements a token and layer are all of it.",
            _wrong(latent=lambda c: 2 * c.kv_heads * c.head_dim),
        ),
        Mistake(
            "keys-made-from-latents",
            "Keys (a + p) and values (v) of H heads are made from the latent when needed. Cached are r + p elements.",
            _wrong(latent=lambda c: c.heads * (c.head_dim + c.mla.v_head_dim)),
        ),
    ),
)
