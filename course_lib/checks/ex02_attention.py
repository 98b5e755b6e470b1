"""Exercise 02, third part: grouped-query attention.

Letters: H query heads, K KV heads, d head_dim, t new tokens, n = cached + t keys.
"""

from __future__ import annotations

import math
from random import Random

import torch
from torch import Tensor

from course_lib.checks.compare import compare
from course_lib.checks.core import Case, Mistake, Problem, Property
from course_lib.checks.ex02_mask import causal_mask


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    return _attend(q, keys, values, mask)


def _interleave(x: Tensor, group: int) -> Tensor:
    return x.repeat_interleave(group, dim=0)


def _fill(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -math.inf)


def _attend(q, keys, values, mask, *, spread=_interleave, scale=math.sqrt, hide=_fill, axis=-1) -> Tensor:
    """Softmax(q k^T / scale(d)) v, with one of its parts replaced by a wrong one."""
    group = q.shape[0] // keys.shape[0]
    keys, values = spread(keys, group), spread(values, group)
    scores = q @ keys.transpose(-1, -2) / scale(q.shape[-1])
    return hide(scores, mask).softmax(dim=axis) @ values


def _hidden_after_softmax(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    group = q.shape[0] // keys.shape[0]
    keys, values = _interleave(keys, group), _interleave(values, group)
    weights = (q @ keys.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(dim=-1)
    return (weights * mask) @ values


def _random_attention(rng: Random, H: int, K: int, t: int, cached: int, d: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    q, keys, values = (torch.randn(heads, n, d, generator=generator) for heads, n in ((H, t), *((K, cached + t),) * 2))
    return 2 * q, keys, values, causal_mask(cached, t)


def _attend_public(rng: Random) -> list[Case | Property]:
    q, keys, values, mask = _random_attention(rng, H=4, K=2, t=3, cached=2, d=8)
    other = values.clone()
    other[:, -1] = 50.0  # the last key, which only the last query may see
    zeros, column = torch.zeros(2, 1, 1), torch.tensor([[[2.0], [4.0], [90.0]]])
    seen = torch.tensor([[True, True, False]])
    return [
        # A query of zeros weighs all visible keys alike: the mean of the values 2 and 4.
        Case("worked example", (zeros, column, column, seen), {"the result": torch.full((2, 1, 1), 3.0)}),
        Case("edge case", _random_attention(rng, H=4, K=2, t=1, cached=0, d=8)),
        Case("edge case", _random_attention(rng, H=4, K=2, t=1, cached=6, d=8)),
        Case("edge case", _random_attention(rng, H=3, K=3, t=4, cached=0, d=8)),
        Case("reference", (q, keys, values, mask)),
        Property(
            "a value that is masked changes nothing",
            ((q, keys, values, mask), (q, keys, other, mask)),
            lambda v: (d := compare(v[1]["the result"][:, :-1], v[0]["the result"][:, :-1], "the result")) and d.text,
        ),
        Case("reference", _random_attention(rng, H=6, K=2, t=5, cached=9, d=16)),
    ]


ATTEND = Problem(
    name="attend",
    arguments=("q", "keys", "values", "mask"),
    reference=attend,
    public=_attend_public,
    hidden=lambda rng: [
        Case("reference", _random_attention(rng, K * rng.choice((2, 3)), K, rng.randint(2, 9), rng.randint(1, 30), 16))
        for K in (1, 2, 4)
    ],
    mistakes=(
        Mistake(
            "heads-tiled",
            "Query head i reads KV head i // (H / K): neighbours share one. Use repeat_interleave, not repeat.",
            lambda *a: _attend(*a, spread=lambda x, group: x.repeat(group, 1, 1)),
        ),
        Mistake(
            "unscaled", "Divide the scores by sqrt(d) before the softmax.", lambda *a: _attend(*a, scale=lambda d: 1)
        ),
        Mistake("scaled-by-d", "Divide the scores by sqrt(d), not by d.", lambda *a: _attend(*a, scale=lambda d: d)),
        Mistake(
            "mask-ignored",
            "The mask was not used: scores of hidden keys must be -inf before the softmax.",
            lambda *a: _attend(*a, hide=lambda scores, mask: scores),
        ),
        Mistake(
            "mask-inverted",
            "True in the mask means visible: fill the scores where it is False.",
            lambda *a: _attend(*a, hide=lambda scores, mask: scores.masked_fill(mask, -math.inf)),
        ),
        Mistake(
            "masked-with-zero",
            "A score of 0 still gets weight e^0 = 1 in the softmax: hidden keys need -inf.",
            lambda *a: _attend(*a, hide=lambda scores, mask: scores * mask),
        ),
        Mistake(
            "masked-after-softmax",
            "Mask before the softmax: hidden keys have taken their share of the weights, and the rest sums to under 1.",
            _hidden_after_softmax,
        ),
        Mistake(
            "mask-added",
            "Adding a boolean mask adds 1 to the visible scores; hidden keys need -inf.",
            lambda *a: _attend(*a, hide=lambda scores, mask: scores + mask),
        ),
        Mistake(
            "softmax-over-queries",
            "The weights of one query over its keys sum to 1: softmax over the last axis.",
            lambda *a: _attend(*a, axis=-2),
        ),
        Mistake(
            "softmax-over-heads",
            "The weights of one query over its keys sum to 1: softmax over the last axis, not the heads.",
            lambda *a: _attend(*a, axis=0),
        ),
        Mistake(
            "first-kv-head",
            "All query heads read KV head 0; there are K, and each serves H / K query heads.",
            lambda *a: _attend(*a, spread=lambda x, group: x[:1].expand(group * len(x), -1, -1)),
        ),
    ),
)
