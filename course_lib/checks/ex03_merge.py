"""Exercise 03, fifth part: fewer KV heads for a trained model, the means of old ones (arXiv 2305.13245, section 2.1).

Letters: H query heads, K old and K' new KV heads, d size of a head, h hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
from torch import Tensor

from course_lib.checks.compare import compare
from course_lib.checks.core import Case, Mistake, Play, Problem, Property
from course_lib.checks.ex03_engine import WINDOW, same_as_reference
from course_lib.checks.own_heads import MergeKvHeads
from course_lib.training.convert_heads import pool_heads


def merge_kv_heads(qkv: Tensor, heads: int, kv_heads: int, new_kv_heads: int) -> Tensor:
    return _merge(qkv, heads, kv_heads, new_kv_heads)


def _parts(qkv: Tensor, heads: int, kv_heads: int) -> list[Tensor]:
    """The query, key and value heads, each [heads, d, ...]."""
    return list(qkv.unflatten(0, (heads + 2 * kv_heads, -1)).split([heads, kv_heads, kv_heads]))


def _mean(part: Tensor, new: int) -> Tensor:
    return pool_heads(part.flatten(0, 1), len(part), new).unflatten(0, (new, -1))


def _merge(qkv, heads, kv_heads, new, *, q=lambda part, new: part, k=_mean, v=_mean) -> Tensor:
    """The fused projection of three parts, of which one is converted in a wrong way."""
    parts = zip((q, k, v), _parts(qkv, heads, kv_heads), strict=True)
    return torch.cat([convert(part, new).flatten(0, 1) for convert, part in parts])


def _wrong_mean(mean: Callable[[Tensor, int], Tensor]) -> MergeKvHeads:
    return lambda *args: _merge(*args, k=mean, v=mean)


def _grouped(part: Tensor, new: int) -> Tensor:
    """[K', K / K', d, ...]"""
    return part.unflatten(0, (new, -1))


def _mean_of_rows(part: Tensor, new: int) -> Tensor:
    rows = part.flatten(0, 1)
    return rows.unflatten(0, (-1, len(part) // new)).mean(1).unflatten(0, (new, -1))


def _mean_over_d(part: Tensor, new: int) -> Tensor:
    return part.unflatten(1, (-1, len(part) // new)).mean(2).flatten(0, 1).unflatten(0, (new, -1))


def _values_first(qkv: Tensor, heads: int, kv_heads: int, new: int) -> Tensor:
    q, k, v = _parts(_merge(qkv, heads, kv_heads, new), heads, new)
    return torch.cat((q, v, k)).flatten(0, 1)


def _queries_last(qkv: Tensor, heads: int, kv_heads: int, new: int) -> Tensor:
    """Takes the rows for keys, values and queries."""
    k, v, q = qkv.unflatten(0, (heads + 2 * kv_heads, -1)).split([kv_heads, kv_heads, heads])
    return torch.cat((_mean(k, new), _mean(v, new), q)).flatten(0, 1)


def _weight_only(qkv: Tensor, *counts: int) -> Tensor:
    return merge_kv_heads(qkv, *counts) if qkv.dim() == 2 else qkv


def _needs_two_axes(qkv: Tensor, *counts: int) -> Tensor:
    _, _ = qkv.shape  # ValueError for a bias
    return merge_kv_heads(qkv, *counts)


def _projection(rng: Random, H: int, K: int, new: int, d: int = 4, h: int | None = 6, dtype=torch.float32) -> tuple:
    """A fused weight, or a bias where h is None, and the three counts."""
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    rows = (H + 2 * K) * d
    return torch.randn((rows, h) if h else (rows,), generator=generator).to(dtype), H, K, new


def _play(kv_heads: int, start: int = 0) -> Play:
    return Play(
        f"`tiny-mha`, H = K = 8, with {kv_heads} KV heads reads {WINDOW} tokens",
        lambda merge: same_as_reference(kv_heads, start, merge),
    )


def _public(rng: Random) -> list[Case | Property | Play]:
    column = torch.tensor([1.0, 2, 3, 4, 2, 4, 10, 20, 1, 3, 5, 9])[:, None]  # four heads each, d = 1 and h = 1
    weight, *_ = _projection(rng, 8, 8, 8)
    return [
        # The keys 2, 4, 10, 20 become 3 and 15, the values 1, 3, 5, 9 become 2 and 7; the queries stay.
        Case(
            "worked example",
            (column, 4, 4, 2),
            {"the result": torch.tensor([1.0, 2, 3, 4, 3, 15, 2, 7])[:, None]},
        ),
        Case("edge case", _projection(rng, 6, 6, 3)),
        Case("edge case", _projection(rng, 6, 6, 2)),
        Case("edge case", _projection(rng, 4, 4, 4)),
        Case("edge case", _projection(rng, 4, 4, 1)),  # to multi-query attention
        Case("edge case", _projection(rng, 8, 4, 2)),  # from grouped-query attention
        Case("edge case", _projection(rng, 6, 6, 3, h=None)),  # a bias
        Case("edge case", _projection(rng, 4, 4, 2, dtype=torch.bfloat16)),
        Property(
            "8 heads to 4 and then to 2 are the same as 8 to 2",
            ((weight, 8, 8, 2), (merge_kv_heads(weight, 8, 8, 4), 8, 4, 2)),
            lambda views: (d := compare(views[1], views[0])) and d.text,
        ),
        _play(8),
        _play(2),
    ]


def _hidden(rng: Random) -> list[Case | Play]:
    return [
        *(_case(rng, h) for h in (12, 7, None)),
        _play(rng.choice((1, 2, 4)), rng.randrange(5000)),
    ]


def _case(rng: Random, h: int | None) -> Case:
    new, merged_heads, group = rng.choice((2, 3)), rng.choice((2, 3)), rng.choice((1, 2))
    kv_heads = new * merged_heads
    return Case("reference", _projection(rng, kv_heads * group, kv_heads, new, d=rng.choice((4, 8)), h=h))


MERGE_KV_HEADS = Problem(
    name="merge_kv_heads",
    arguments=("qkv", "heads", "kv_heads", "new_kv_heads"),
    reference=merge_kv_heads,
    public=_public,
    hidden=_hidden,
    public_points=4,
    hidden_points=4,
    mistakes=(
        Mistake(
            "every-nth-head",
            "Query heads 0 .. H/K' - 1 will read new head 0, so it is the mean of the first K / K' heads, neighbours.",
            _wrong_mean(lambda part, new: part.unflatten(0, (-1, new)).mean(0)),
        ),
        Mistake(
            "summed",
            "The sum is K / K' times too large: take the mean.",
            _wrong_mean(lambda part, new: _grouped(part, new).sum(1)),
        ),
        Mistake(
            "divided-by-new-count",
            "Each new head is the mean of K / K' old ones: divide the sum by K / K', not by K'.",
            _wrong_mean(lambda part, new: _grouped(part, new).sum(1) / new),
        ),
        Mistake(
            "first-of-group",
            "The other heads of the group are lost: take the mean of all K / K'.",
            _wrong_mean(lambda part, new: _grouped(part, new)[:, 0]),
        ),
        Mistake(
            "first-heads-kept",
            "The first K' heads were kept and the others dropped: each new head is the mean of K / K' neighbours.",
            _wrong_mean(lambda part, new: part[:new]),
        ),
        Mistake(
            "one-mean-for-all",
            "Every new head got the mean of all K old ones: each is the mean of its own K / K' neighbours.",
            _wrong_mean(lambda part, new: part.mean(0, keepdim=True).expand_as(part[:new])),
        ),
        Mistake(
            "rows-averaged",
            "Neighbouring rows are elements of one head: average row j of a head with row j of the next head.",
            _wrong_mean(_mean_of_rows),
        ),
        Mistake(
            "mean-over-groups",
            "The mean was taken over the groups. View the heads as [K', K / K', d, h] and average axis 1.",
            _wrong_mean(lambda part, new: _grouped(part, new).mean(0)),
        ),
        Mistake(
            "mean-over-d",
            "That mixes the elements of a head: view the heads as [K', K / K', d, h] and average axis 1.",
            _wrong_mean(_mean_over_d),
        ),
        Mistake(
            "queries-merged",
            "The queries stay as they are, all H heads: only keys and values get fewer heads.",
            lambda *a: _merge(*a, q=lambda part, new: _mean(part, new * len(part) // a[2])),
        ),
        Mistake(
            "values-kept",
            "The values have to be merged as the keys are.",
            lambda *a: _merge(*a, v=lambda part, new: part),
        ),
        Mistake(
            "keys-kept",
            "The keys have to be merged as the values are.",
            lambda *a: _merge(*a, k=lambda part, new: part),
        ),
        Mistake(
            "values-before-keys",
            "The rows are the queries, then the keys, then the values, before and after.",
            _values_first,
        ),
        Mistake(
            "queries-last",
            "The queries are the first H * d rows; the keys come after them, then the values.",
            _queries_last,
        ),
        Mistake(
            "keys-and-values-only",
            "Return the whole projection: the queries, then the merged keys, then the merged values.",
            lambda qkv, heads, kv_heads, new: torch.cat(
                _parts(merge_kv_heads(qkv, heads, kv_heads, new), heads, new)[1:]
            ).flatten(0, 1),
        ),
        Mistake(
            "parts-apart",
            "Return one tensor, with the three parts below one another as they came: torch.cat.",
            lambda qkv, heads, kv_heads, new: tuple(
                part.flatten(0, 1) for part in _parts(merge_kv_heads(qkv, heads, kv_heads, new), heads, new)
            ),
        ),
        Mistake(
            "head-axis-kept",
            "The result has the two axes of the weight that came in: [(H + 2K') d, h].",
            lambda qkv, heads, kv_heads, new: torch.cat(_parts(merge_kv_heads(qkv, heads, kv_heads, new), heads, new)),
        ),
        Mistake(
            "bias-kept",
            "A bias [(H + 2K) d] has the same rows as the weight, and is merged as it is.",
            _weight_only,
        ),
        Mistake(
            "bias-refused",
            "A bias [(H + 2K) d] has one axis: split and view by the rows, and leave the other axes as they are.",
            _needs_two_axes,
        ),
        Mistake(
            "wider-dtype",
            "The result has the dtype of the projection: turn the mean back into it.",
            lambda qkv, *a: merge_kv_heads(qkv.float(), *a),
        ),
    ),
)
