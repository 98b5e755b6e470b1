"""Exercise 03, third part: a KV head for each query head.

Letters: H query heads, K KV heads, d size of a head, n tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
from torch import Tensor

from course_lib.checks.core import Case, Mistake, Problem


def spread_heads(kv: Tensor, heads: int) -> Tensor:
    return kv.repeat_interleave(heads // len(kv), dim=0)


def _by_index(head: Callable[[int, int, int], int]) -> Callable[[Tensor, int], Tensor]:
    """Query head i reads KV head head(i, H, K)."""
    return lambda kv, heads: torch.stack([kv[head(i, heads, len(kv))] for i in range(heads)])


def _numbered(H: int, K: int, n: int, d: int, start: float = 0) -> tuple[Tensor, int]:
    """[K, n, d] of numbers that are all different."""
    return (start + torch.arange(K * n * d, dtype=torch.float32)).view(K, n, d), H


def _public(rng: Random) -> list[Case]:
    kv = torch.tensor([[[5.0]], [[7.0]], [[9.0]]])
    want = torch.tensor([5.0, 5.0, 7.0, 7.0, 9.0, 9.0]).view(6, 1, 1)
    return [
        # Six query heads on three KV heads: 0 and 1 share the first one.
        Case("worked example", (kv, 6), {"the result": want}),
        Case("edge case", _numbered(6, 2, n=3, d=2)),
        Case("edge case", _numbered(4, 4, n=3, d=2)),  # multi-head attention
        Case("edge case", _numbered(4, 1, n=3, d=2)),  # multi-query attention
        Case("edge case", (_numbered(4, 2, n=3, d=2)[0].bfloat16(), 4)),
        Case("reference", _numbered(12, 3, n=5, d=8)),
    ]


SPREAD_HEADS = Problem(
    name="spread_heads",
    arguments=("kv", "heads"),
    reference=spread_heads,
    public=_public,
    hidden=lambda rng: [
        Case("reference", _numbered(K * rng.choice((2, 5)), K, rng.randint(1, 9), rng.randint(1, 9), rng.uniform(1, 9)))
        for K in (2, 3, 4)
    ],
    mistakes=(
        Mistake(
            "tiled",
            "Query head i reads KV head i // (H / K), not i % K: neighbours share one. `repeat` tiles; "
            "repeat_interleave keeps copies together.",
            lambda kv, heads: kv.repeat(heads // len(kv), 1, 1),
        ),
        Mistake(
            "divided-by-kv-heads",
            "A group has H / K query heads: query head i reads KV head i // (H / K), not i // K.",
            _by_index(lambda i, H, K: i // K),
        ),
        Mistake(
            "first-head-for-all",
            "All query heads got KV head 0; there are K, and each serves H / K query heads.",
            _by_index(lambda i, H, K: 0),
        ),
        Mistake(
            "backwards",
            "The KV heads came in reverse order: the first H / K query heads read KV head 0.",
            _by_index(lambda i, H, K: (H - 1 - i) // (H // K)),
        ),
        Mistake(
            "tokens-repeated",
            "The heads are axis 0; axis 1 holds the tokens, and no token comes twice.",
            lambda kv, heads: kv.repeat_interleave(heads // len(kv), dim=1),
        ),
        Mistake(
            "elements-repeated",
            "The heads are axis 0; the last axis holds the d elements of one key.",
            lambda kv, heads: kv.repeat_interleave(heads // len(kv), dim=2),
        ),
        Mistake(
            "flattened-first",
            "Without dim, repeat_interleave flattens the tensor and repeats single numbers: give it dim=0.",
            lambda kv, heads: kv.repeat_interleave(heads // len(kv)),
        ),
        Mistake(
            "each-head-h-times",
            "Each KV head serves H / K query heads, not H: the result has H heads.",
            lambda kv, heads: kv.repeat_interleave(heads, dim=0),
        ),
        Mistake(
            "group-axis-left",
            "The groups are an axis of their own; merge it with the heads: [K, H / K, n, d] becomes [H, n, d].",
            lambda kv, heads: kv[:, None].expand(-1, heads // len(kv), -1, -1),
        ),
        Mistake(
            "not-spread",
            "The result has one entry for each of the H query heads; kv has K.",
            lambda kv, heads: kv,
        ),
    ),
)
