"""Exercise 02, first part: the cache's size and writing into it.

Letters: L layers, K KV heads, d head_dim, N capacity of the buffer in tokens, n tokens, b bytes per element.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.compare import compare
from course_lib.checks.core import Case, Mistake, Outcome, Problem, Property
from course_lib.checks.ex01_counts import (
    LLAMA_8B,
    TOY,
    number,
    proportional,
    random_shape,
    shape,
    with_derived_head_dim,
)
from course_lib.config import ModelConfig

QWEN3_4B = shape(L=36, h=2560, H=32, K=8, d=128, f=9728, V=151936, tied=True)  # arXiv 2505.09388; H * d = 4096


# --- kv_bytes ---


def kv_bytes(config: ModelConfig, tokens: int, sequences: int, bytes_per_element: float) -> float:
    return config.kv_bytes_per_token(bytes_per_element) * tokens * sequences


KV_BYTES = Problem(
    name="kv_bytes",
    arguments=("config", "tokens", "sequences", "bytes_per_element"),
    reference=kv_bytes,
    public=lambda rng: [
        # 2 (K and V) * 2 layers * 3 KV heads * 4 = 48 numbers a token; 5 tokens, 7 sequences, 2 bytes.
        Case("worked example", (TOY, 5, 7, 2), number(48 * 5 * 7 * 2)),
        Case("edge case", (TOY, 1, 1, 1), number(48)),
        Case("edge case", (TOY, 0, 3, 2), number(0)),
        Property("twice the tokens need twice the bytes", ((TOY, 11, 1, 2), (TOY, 22, 1, 2)), proportional(2)),
        Case("reference", (QWEN3_4B, 1, 1, 2), number(147_456)),
        Case("reference", (LLAMA_8B, 32_768, 1, 2), number(4_294_967_296)),
    ],
    hidden=lambda rng: [
        Case("reference", (random_shape(rng), rng.randint(2, 40_000), rng.randint(2, 64), b)) for b in (0.5, 1, 4)
    ],
    mistakes=(
        Mistake(
            "query-heads",
            "The cache holds K KV heads, not H query heads: that is what grouped-query attention saves.",
            lambda c, n, s, b: kv_bytes(c, n, s, b) * c.heads / c.kv_heads,
        ),
        Mistake(
            "groups-for-kv-heads",
            "H / K is how many query heads share a KV head. The cache holds K heads: config.kv_heads.",
            lambda c, n, s, b: kv_bytes(c, n, s, b) * c.group / c.kv_heads,
        ),
        Mistake(
            "hidden-for-kv-width",
            "A token's key has K * d numbers, not h: the cache stores what the key matrix gives.",
            lambda c, n, s, b: 2 * c.layers * c.hidden * n * s * b,
        ),
        Mistake(
            "keys-without-values",
            "A token leaves a key and a value in every layer: the factor 2.",
            lambda c, n, s, b: kv_bytes(c, n, s, b) / 2,
        ),
        Mistake(
            "head-dim-derived",
            "d is config.head_dim, not hidden // heads: Qwen3-4B has 32 heads of 128 on a hidden size of 2,560.",
            lambda c, n, s, b: kv_bytes(with_derived_head_dim(c), n, s, b),
        ),
        Mistake(
            "one-layer",
            "Every layer has its own keys and values: the factor L.",
            lambda c, n, s, b: kv_bytes(c, n, s, b) / c.layers,
        ),
        Mistake(
            "one-sequence",
            "Each sequence has its own cache: the bytes grow with `sequences`.",
            lambda c, n, s, b: kv_bytes(c, n, 1, b),
        ),
        Mistake(
            "gib-for-bytes",
            "The result is in bytes; do not divide it by 2**30 (GiB).",
            lambda c, n, s, b: kv_bytes(c, n, s, b) / 2**30,
        ),
        Mistake(
            "bits-for-bytes",
            "bytes_per_element is already in bytes: 2 for 16-bit numbers.",
            lambda c, n, s, b: kv_bytes(c, n, s, b) / 8,
        ),
    ),
)


# --- append ---


def append(buffer: Tensor, new: Tensor, length: int) -> int:
    end = length + new.shape[1]
    if end > buffer.shape[1]:
        raise ValueError(f"the buffer holds {buffer.shape[1]} tokens and would need {end}")
    buffer[:, length:end] = new
    return end


def returned_and_buffer(outcome: Outcome) -> dict[str, Any]:
    return {"the returned length": outcome.value, "the buffer": outcome.args[0]}


def filled(K: int, N: int, d: int, start: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """[K, N, d] of numbers that are all different, so that every misplaced one shows."""
    return (start + torch.arange(K * N * d, dtype=torch.float32)).reshape(K, N, d).to(dtype)


def _append_at(place) -> Any:
    """`append` that writes at `place(length)`."""

    def wrong(buffer: Tensor, new: Tensor, length: int) -> int:
        start = place(length)
        buffer[:, start : start + new.shape[1]] = new
        return length + new.shape[1]

    return wrong


def _append_first_only(buffer: Tensor, new: Tensor, length: int) -> int:
    buffer[:, length] = new[:, 0]
    return length + new.shape[1]


def _append_cut(buffer: Tensor, new: Tensor, length: int) -> int:
    end = min(length + new.shape[1], buffer.shape[1])
    buffer[:, length:end] = new[:, : end - length]
    return end


def _returning(value) -> Any:
    """`append` that writes well and returns `value(buffer, new, length)`."""

    def wrong(buffer: Tensor, new: Tensor, length: int) -> Any:
        append(buffer, new, length)
        return value(buffer, new, length)

    return wrong


def _append_cases(rng: Random) -> list[Case | Property]:
    K, N, d, length = rng.randint(1, 4), rng.randint(12, 30), rng.randint(2, 8), rng.randint(1, 5)
    n = rng.randint(2, N - length)
    buffer, new = filled(K, N, d, rng.uniform(1, 9)), filled(K, n, d, 1000)
    return [
        Case("reference", (buffer, new, length)),
        Case("edge case", (filled(K, N, d, 1, torch.bfloat16), filled(K, 1, d, 99, torch.bfloat16), N - 1)),
        Case("edge case", (buffer, filled(K, 2, d, 0), N - 1), raises="ValueError"),
    ]


def _append_public(rng: Random) -> list[Case | Property]:
    buffer, new = filled(2, 6, 3, 1), filled(2, 4, 3, 100)
    middle = torch.tensor([[[0.0], [0.0], [7.0], [8.0], [0.0]]])
    after_two = buffer.clone()
    append(after_two, new[:, :2], 1)
    return [
        # Two cached tokens; the new ones, 7 and 8, go to places 2 and 3, and the cache then holds 4.
        Case(
            "worked example",
            (torch.zeros(1, 5, 1), torch.tensor([[[7.0], [8.0]]]), 2),
            {"the returned length": 4, "the buffer": middle},
        ),
        Case("edge case", (buffer, new, 0)),
        Case("edge case", (buffer, new[:, :1], 3)),
        Case("edge case", (buffer, new, 2)),
        Case("edge case", (buffer, new, 3), raises="ValueError"),
        Property(
            "two tokens and then two more leave the same buffer as all four at once",
            ((buffer, new, 1), (buffer, new[:, :2], 1), (after_two, new[:, 2:], 3)),
            lambda views: (d := compare(views[2], views[0])) and d.text,
        ),
        Case("reference", (filled(3, 9, 4, 1), filled(3, 3, 4, 200), 4)),
    ]


APPEND = Problem(
    name="append",
    arguments=("buffer", "new", "length"),
    reference=append,
    public=_append_public,
    hidden=_append_cases,
    view=returned_and_buffer,
    mistakes=(
        Mistake(
            "written-at-zero",
            "New tokens go behind the cached ones: start at `length`, not at 0, or the prompt's keys are overwritten.",
            _append_at(lambda length: 0),
        ),
        Mistake(
            "one-early",
            "The first free place is `length`; length - 1 holds the last cached token.",
            _append_at(lambda length: max(length - 1, 0)),
        ),
        Mistake(
            "copy-not-in-place",
            "The buffer that was passed in did not change: write into it, not into a copy.",
            lambda buffer, new, length: length + new.shape[1],
        ),
        Mistake(
            "concatenated",
            "torch.cat builds a new, longer tensor and copies the whole cache in every step: write into the buffer.",
            lambda buffer, new, length: torch.cat((buffer[:, :length], new), dim=1),
        ),
        Mistake(
            "returns-new-count",
            "Return how many tokens the buffer holds now, old and new; the number of new ones is not enough.",
            _returning(lambda buffer, new, length: new.shape[1]),
        ),
        Mistake(
            "returns-old-length",
            "Return the length after writing: length plus the number of new tokens.",
            _returning(lambda buffer, new, length: length),
        ),
        Mistake(
            "returns-capacity",
            "buffer.shape[1] is the capacity N, reserved in advance; the length is how much of it is in use.",
            _returning(lambda buffer, new, length: buffer.shape[1]),
        ),
        Mistake(
            "returns-buffer",
            "Return the new length, an int; the caller has the buffer already.",
            _returning(lambda buffer, new, length: buffer),
        ),
        Mistake(
            "first-token-only",
            "`new` holds n tokens, new.shape[1] of them, and all go into the buffer; a prefill writes many at once.",
            _append_first_only,
        ),
        Mistake(
            "overflow-cut",
            "Tokens that do not fit were dropped in silence. Raise ValueError before anything is written.",
            _append_cut,
        ),
    ),
)
