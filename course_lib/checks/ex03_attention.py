"""Exercise 03, fourth part: decode attention of a batch in which groups of query heads share a KV head.

Letters: S sequences, H query heads, K KV heads, d size of a head, N keys that the padded cache holds.
"""

from __future__ import annotations

import math
from random import Random

import torch
from torch import Tensor

from course_lib.checks.compare import compare
from course_lib.checks.core import Case, Mistake, Play, Problem, Property
from course_lib.checks.ex03_engine import same_text
from course_lib.checks.own_heads import GroupedAttention

Step = tuple[Tensor, Tensor, Tensor, Tensor]  # the arguments of grouped_attention


def grouped_attention(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    return _attention(query, keys, values, lengths)


def _group(query: Tensor, K: int) -> Tensor:
    """[S, H, d] to [S, K, H / K, d]."""
    return query.unflatten(1, (K, -1))


def _ungroup(out: Tensor) -> Tensor:
    """[S, K, H / K, d] to [S, H, d]."""
    return out.flatten(1, 2)


def _padding(lengths: Tensor, N: int) -> Tensor:
    """Bool [S, 1, 1, N]: True for padding."""
    return (torch.arange(N) >= lengths[:, None])[:, None, None]


def _fill(scores: Tensor, hidden: Tensor) -> Tensor:
    return scores.masked_fill(hidden, -math.inf)


def _nothing(scores: Tensor, hidden: Tensor) -> Tensor:
    return scores


def _softmax(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-1)


def _attention(
    query, keys, values, lengths, *,
    group=_group, ungroup=_ungroup, scale=math.sqrt, padding=_padding, hide=_fill, softmax=_softmax,
) -> Tensor:  # fmt: skip
    """Softmax(q k^T / scale(d)) v in groups, with one of its parts replaced by a wrong one."""
    scores = group(query, keys.shape[1]) @ keys.transpose(2, 3) / scale(query.shape[-1])  # [S, K, H / K, N]
    weights = softmax(hide(scores, padding(lengths, keys.shape[2])))
    return ungroup(weights @ values)


def _wrong(**parts) -> GroupedAttention:
    return lambda *args: _attention(*args, **parts)


def _first_head(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    return _attention(query, keys[:, :1], values[:, :1], lengths)


def _strided(query: Tensor, K: int) -> Tensor:
    return query.unflatten(1, (-1, K)).transpose(1, 2)


def _hidden_after_softmax(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    seen = ~_padding(lengths, keys.shape[2])
    late = _wrong(hide=_nothing, softmax=lambda scores: scores.softmax(-1) * seen)
    return late(query, keys, values, lengths)


def _padding_zeroed(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    hidden = _padding(lengths, keys.shape[2]).transpose(2, 3)
    keys, values = keys.masked_fill(hidden, 0), values.masked_fill(hidden, 0)
    return _attention(query, keys, values, lengths, hide=_nothing)


def _mean_of_groups(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    group = query.shape[1] // keys.shape[1]
    mean = _group(query, keys.shape[1]).mean(2).repeat_interleave(group, dim=1)
    return _attention(mean, keys, values, lengths)


def _random_step(rng: Random, H: int, K: int, lengths: list[int], padding: int = 0, d: int = 8) -> Step:
    """Sequences of these lengths in one padded cache, with values of others behind their own."""
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    S, N = len(lengths), max(lengths) + padding
    query = 2 * torch.randn(S, H, d, generator=generator)
    keys, values = (torch.randn(S, K, N, d, generator=generator) for _ in range(2))
    return query, keys, values, torch.tensor(lengths)


def _overwritten(step: Step) -> Step:
    """Other keys and values behind the sequences' own."""
    query, keys, values, lengths = step
    hidden = _padding(lengths, keys.shape[2]).transpose(2, 3)
    return query, keys.where(~hidden, -keys), values.where(~hidden, values + 40), lengths


def _same(views: list[dict]) -> str | None:
    difference = compare(views[1], views[0])
    return difference and difference.text


PROMPTS = ["In the beginning God created", "And Moses said", "The king", "Blessed is the man that walketh not in"]


def _play(prompts: list[str]) -> Play:
    return Play(
        f"`tiny` writes on {len(prompts)} texts at once, its decode steps attend by this function",
        lambda attention: same_text(prompts, 8, attention),
    )


def _public(rng: Random) -> list[Case | Property | Play]:
    step = _random_step(rng, H=6, K=3, lengths=[9, 4, 1, 6])
    column = torch.tensor([2.0, 4.0, 90.0]).view(1, 1, 3, 1)
    return [
        # A query of zeros weighs all keys alike: the mean of the values 2 and 4; 90 is padding.
        Case(
            "worked example",
            (torch.zeros(1, 2, 1), column, column, torch.tensor([2])),
            {"the result": torch.full((1, 2, 1), 3.0)},
        ),
        Case("edge case", _random_step(rng, H=6, K=3, lengths=[5])),  # nothing is padded
        Case("edge case", _random_step(rng, H=6, K=3, lengths=[5], padding=3)),
        Case("edge case", _random_step(rng, H=6, K=3, lengths=[4, 1, 7, 2])),
        Case("edge case", _random_step(rng, H=4, K=4, lengths=[2, 3])),  # multi-head attention
        Case("edge case", _random_step(rng, H=4, K=1, lengths=[2, 3])),  # multi-query attention
        Property("what lies behind a sequence's own keys changes nothing", (step, _overwritten(step)), _same),
        Case("reference", _random_step(rng, H=8, K=2, lengths=[17, 30, 23], padding=2, d=16)),
        _play(PROMPTS),
    ]


def _hidden_cases(rng: Random) -> list[Case | Play]:
    return [
        *(
            Case(
                "reference",
                _random_step(rng, K * rng.choice((2, 3)), K, [rng.randint(1, 30) for _ in range(rng.randint(1, 5))], 1),
            )
            for K in (1, 2, 4)
        ),
        _play(rng.sample(PROMPTS, 3)),
    ]


GROUPED_ATTENTION = Problem(
    name="grouped_attention",
    arguments=("query", "keys", "values", "lengths"),
    reference=grouped_attention,
    public=_public,
    hidden=_hidden_cases,
    public_points=4,
    hidden_points=4,
    mistakes=(
        Mistake(
            "strided-groups",
            "Query heads 0 .. H/K - 1 share KV head 0: the reshape to [K, H/K, d] keeps neighbours together.",
            _wrong(group=_strided, ungroup=lambda out: out.transpose(1, 2).flatten(1, 2)),
        ),
        Mistake(
            "queries-strided",
            "The queries were grouped as [H/K, K] and the results read as [K, H/K]: group them as [K, H/K, d].",
            _wrong(group=_strided),
        ),
        Mistake(
            "results-out-of-order",
            "The results came out of order: [S, K, H/K, d] becomes [S, H, d] by a reshape, without a transpose.",
            _wrong(ungroup=lambda out: out.transpose(1, 2).flatten(1, 2)),
        ),
        Mistake(
            "group-axis-kept",
            "Merge the two axes of the heads again: [S, K, H/K, d] becomes [S, H, d].",
            _wrong(ungroup=lambda out: out),
        ),
        Mistake("one-kv-head", "All query heads read KV head 0; each group has its own.", _first_head),
        Mistake(
            "group-averaged",
            "The query heads of a group share keys, not queries: each has a result of its own.",
            _mean_of_groups,
        ),
        Mistake("not-scaled", "Divide the scores by sqrt(d) before the softmax.", _wrong(scale=lambda d: 1)),
        Mistake("over-d", "Divide the scores by sqrt(d), not by d.", _wrong(scale=lambda d: d)),
        Mistake("times-root-d", "Divide the scores by sqrt(d), do not multiply.", _wrong(scale=lambda d: d**-0.5)),
        Mistake(
            "padding-attended",
            "Behind a sequence's own keys lie stale ones: scores from `length` on must be -inf before the softmax.",
            _wrong(hide=_nothing),
        ),
        Mistake(
            "longest-for-all",
            "Each sequence has its own length: all were masked by the longest.",
            lambda q, k, v, lengths: _attention(q, k, v, lengths.amax().expand(len(lengths))),
        ),
        Mistake(
            "shortest-for-all",
            "Each sequence has its own length: all were masked by the shortest.",
            lambda q, k, v, lengths: _attention(q, k, v, lengths.amin().expand(len(lengths))),
        ),
        Mistake(
            "first-length-for-all",
            "Each sequence has its own length: all were masked by the first one's.",
            lambda q, k, v, lengths: _attention(q, k, v, lengths[:1].expand(len(lengths))),
        ),
        Mistake(
            "mask-misaligned",
            "A mask [S, N] is lined up with the last two axes, [H/K, N]: give it axes for K and H/K, [S, 1, 1, N].",
            _wrong(padding=lambda lengths, N: _padding(lengths, N)[:, 0, 0]),
        ),
        Mistake(
            "mask-upside-down",
            "The keys 0 .. length - 1 are the sequence's own, and were hidden; what lies behind them is padding.",
            _wrong(padding=lambda lengths, N: ~_padding(lengths, N)),
        ),
        Mistake(
            "newest-key-hidden",
            "`lengths` counts the newest token, whose key is in the cache already: a token attends to itself.",
            _wrong(padding=lambda lengths, N: _padding(lengths - 1, N)),
        ),
        Mistake(
            "one-key-too-many",
            "The key at place `length` is the first one behind the sequence: its own are 0 .. length - 1.",
            _wrong(padding=lambda lengths, N: _padding(lengths + 1, N)),
        ),
        Mistake(
            "zero-for-infinity",
            "A score of 0 still gets weight e^0 = 1 in the softmax: padding needs -inf.",
            _wrong(hide=lambda scores, hidden: scores.masked_fill(hidden, 0)),
        ),
        Mistake(
            "padding-zeroed",
            "A key of zeros still gets weight e^0 = 1 in the softmax: give the scores of padding -inf.",
            _padding_zeroed,
        ),
        Mistake(
            "hidden-too-late",
            "Hide before the softmax: padding has taken its share of the weights, and the rest sums to under 1.",
            _hidden_after_softmax,
        ),
        Mistake(
            "softmax-over-group",
            "The weights of one query over its keys sum to 1: softmax over the last axis, not over the group.",
            _wrong(softmax=lambda scores: scores.softmax(-2)),
        ),
        Mistake(
            "softmax-over-kv-heads",
            "The weights of one query over its keys sum to 1: softmax over the last axis, not over the KV heads.",
            _wrong(softmax=lambda scores: scores.softmax(1)),
        ),
        Mistake(
            "no-softmax",
            "The scores become weights by a softmax over the last axis.",
            _wrong(softmax=lambda scores: scores.masked_fill(scores == -math.inf, 0)),
        ),
    ),
)
