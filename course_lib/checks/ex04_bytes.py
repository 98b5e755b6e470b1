"""Exercise 04, last part: what a compressed cache takes, with all that belongs to it.

Letters: L layers, K KV heads, d size of a head, g elements that share a scale.
"""

from __future__ import annotations

from random import Random

from course_lib.checks.core import Case, Mistake, Problem, Property
from course_lib.checks.ex01_counts import LLAMA_8B, TOY, number, proportional, random_shape
from course_lib.checks.ex04_dequantize import int4_dequantize
from course_lib.checks.ex04_engine import bytes_play
from course_lib.checks.ex04_int4 import int4_quantize
from course_lib.checks.ex04_int8 import int8_quantize
from course_lib.checks.ex04_kivi import kivi_append
from course_lib.config import ModelConfig


def compressed_bytes(
    config: ModelConfig, tokens: int, recent: int, bits: int, group: int, scale_bytes: int, float_bytes: int
) -> float:
    return _bytes(config, tokens, recent, bits, group, scale_bytes, float_bytes)


def _elements(config: ModelConfig) -> int:
    return 2 * config.layers * config.kv_heads * config.head_dim


def _coded(bits: int, group: int, scale_bytes: int, d: int) -> float:
    return bits / 8 + scale_bytes / group


def _split(tokens: int, recent: int) -> tuple[int, int]:
    return tokens - recent, recent


def _bytes(
    config, tokens, recent, bits, group, scale_bytes, float_bytes, *, elements=_elements, coded=_coded, split=_split,
    plain=lambda float_bytes, coded: float_bytes,
) -> float:  # fmt: skip
    """With one part replaced by a wrong one. coded, plain: bytes of an element in codes, in float."""
    each = coded(bits, group, scale_bytes, config.head_dim)
    in_codes, in_float = split(tokens, recent)
    return elements(config) * (in_codes * each + in_float * plain(float_bytes, each))


def _random_scheme(rng: Random, bits: int, group: int, scale_bytes: int) -> tuple:
    tokens = rng.randint(200, 9000)
    return random_shape(rng), tokens, rng.randint(1, 160), bits, group, scale_bytes, rng.choice((2, 4))


COMPRESSED_BYTES = Problem(
    name="compressed_bytes",
    arguments=("config", "tokens", "recent", "bits", "group", "scale_bytes", "float_bytes"),
    reference=compressed_bytes,
    public=lambda rng: [
        # 2 * 2 layers * 3 KV heads * 4 = 48 elements a token. 8 tokens in codes of half a byte, and 4 bytes for each
        # 2 elements: 8 * (24 + 96) = 960. 2 tokens in float: 2 * 48 * 2 = 192.
        Case("worked example", (TOY, 10, 2, 4, 2, 4, 2), number(1152)),
        Case("edge case", (TOY, 5, 0, 8, 4, 4, 2), number(5 * (48 + 48))),  # int8, nothing in float
        Case("edge case", (TOY, 3, 3, 4, 2, 4, 4), number(3 * 48 * 4)),  # all of it in float
        Case("edge case", (TOY, 0, 0, 4, 2, 4, 2), number(0)),
        Property(
            "without a float window twice the tokens need twice the bytes",
            ((TOY, 11, 0, 4, 4, 4, 2), (TOY, 22, 0, 4, 4, 4, 2)),
            proportional(2),
        ),
        # arXiv 2407.21783: 131,072 bytes a token in 16 bits, and 36,864 in 4.5 bits, groups of 64 with two float16.
        Case("reference", (LLAMA_8B, 1, 0, 4, 64, 4, 2), number(36_864)),
        Case("reference", (LLAMA_8B, 4096, 128, 2, 32, 4, 2)),
        bytes_play(int8_quantize, kivi_append, int4_quantize, int4_dequantize),
    ],
    hidden=lambda rng: [
        Case("reference", _random_scheme(rng, bits, group, scale_bytes))
        for bits, group, scale_bytes in ((8, 128, 4), (4, 32, 4), (2, 64, 8))
    ],
    mistakes=(
        Mistake(
            "scales-forgotten",
            "Scales and zero points take memory too: scale_bytes for each group of g elements.",
            lambda *a: _bytes(*a, coded=lambda bits, g, scale, d: bits / 8),
        ),
        Mistake(
            "scale-per-element",
            "scale_bytes belong to a whole group: an element's share is scale_bytes / group.",
            lambda *a: _bytes(*a, coded=lambda bits, g, scale, d: bits / 8 + scale),
        ),
        Mistake(
            "scale-per-head",
            "A head of d elements has d / g groups, not one.",
            lambda *a: _bytes(*a, coded=lambda bits, g, scale, d: bits / 8 + scale / d),
        ),
        Mistake(
            "scale-in-bits",
            "scale_bytes are bytes already; only `bits` is divided by 8.",
            lambda *a: _bytes(*a, coded=lambda bits, g, scale, d: (bits + scale / g) / 8),
        ),
        Mistake(
            "bits-for-bytes",
            "`bits` are bits: an element takes bits / 8 bytes.",
            lambda *a: _bytes(*a, coded=lambda bits, g, scale, d: bits + scale / g),
        ),
        Mistake(
            "whole-bytes",
            "bits // 8 is 0 for 4 bits: divide with /, two codes share a byte.",
            lambda *a: _bytes(*a, coded=lambda bits, g, scale, d: bits // 8 + scale / g),
        ),
        Mistake(
            "codes-not-packed",
            "Codes of 4 bits lie two in a byte: they take half a byte each.",
            lambda *a: _bytes(*a, coded=lambda bits, g, scale, d: 1 + scale / g),
        ),
        Mistake(
            "float-window-forgotten",
            "The recent tokens take memory too, float_bytes for each element.",
            lambda *a: _bytes(*a, plain=lambda float_bytes, coded: 0),
        ),
        Mistake(
            "all-in-codes",
            "The recent tokens are in float, and take float_bytes for each element.",
            lambda *a: _bytes(*a, split=lambda tokens, recent: (tokens, 0)),
        ),
        Mistake(
            "recent-counted-twice",
            "`tokens` counts all: the recent ones are not in codes yet, so tokens - recent are.",
            lambda *a: _bytes(*a, split=lambda tokens, recent: (tokens, recent)),
        ),
        Mistake(
            "recent-with-scales",
            "Tokens in float have no scale: only the others pay for theirs.",
            lambda *a: _bytes(*a) + _elements(a[0]) * a[2] * a[5] / a[4],
        ),
        Mistake(
            "keys-without-values",
            "A token leaves a key and a value in every layer: the factor 2.",
            lambda *a: _bytes(*a) / 2,
        ),
        Mistake(
            "query-heads",
            "The cache holds K KV heads, not H query heads.",
            lambda *a: _bytes(*a) * a[0].heads / a[0].kv_heads,
        ),
        Mistake(
            "one-layer",
            "Every layer has its own keys and values: the factor L.",
            lambda *a: _bytes(*a) / a[0].layers,
        ),
        Mistake(
            "bits-for-result",
            "The result is in bytes, not in bits.",
            lambda *a: 8 * _bytes(*a),
        ),
    ),
)
