"""Wrong solutions of exercise 03's `merge_kv_heads`, written as a learner would write them."""

from __future__ import annotations

import torch

from tests.exercises.planting import planted


def _split(qkv, heads, kv_heads):
    d = qkv.shape[0] // (heads + 2 * kv_heads)
    return d, *qkv.split([heads * d, kv_heads * d, kv_heads * d])


def _with(merge):
    """The solution with another way to merge the rows of keys or values, [K d, ...]."""

    def solution(qkv, heads, kv_heads, new_kv_heads):
        d, q, k, v = _split(qkv, heads, kv_heads)
        return torch.cat([q, merge(k, kv_heads, new_kv_heads, d), merge(v, kv_heads, new_kv_heads, d)])

    return solution


def _mean(rows, old, new, d):
    return rows.view(new, old // new, d, *rows.shape[1:]).mean(1).flatten(0, 1)


@planted("merge_kv_heads", "every-nth-head")
def strided(qkv, heads, kv_heads, new_kv_heads):
    def merge(rows, old, new, d):
        by_head = rows.view(old, d, *rows.shape[1:])
        return torch.cat([by_head[j::new].mean(0) for j in range(new)])

    return _with(merge)(qkv, heads, kv_heads, new_kv_heads)


@planted("merge_kv_heads", "summed")
def sums(qkv, heads, kv_heads, new_kv_heads):
    def merge(rows, old, new, d):
        return rows.view(new, old // new, d, *rows.shape[1:]).sum(1).flatten(0, 1)

    return _with(merge)(qkv, heads, kv_heads, new_kv_heads)


@planted("merge_kv_heads", "divided-by-new-count")
def divides_by_the_new_heads(qkv, heads, kv_heads, new_kv_heads):
    def merge(rows, old, new, d):
        by_head = rows.view(old, d, *rows.shape[1:])
        group = old // new
        return torch.cat([sum(by_head[j * group : (j + 1) * group]) / new for j in range(new)])

    return _with(merge)(qkv, heads, kv_heads, new_kv_heads)


@planted("merge_kv_heads", "first-of-group")
def keeps_one_of_each(qkv, heads, kv_heads, new_kv_heads):
    def merge(rows, old, new, d):
        return rows.view(old, d, *rows.shape[1:])[:: old // new].flatten(0, 1)

    return _with(merge)(qkv, heads, kv_heads, new_kv_heads)


@planted("merge_kv_heads", "first-heads-kept")
def keeps_the_first(qkv, heads, kv_heads, new_kv_heads):
    return _with(lambda rows, old, new, d: rows[: new * d])(qkv, heads, kv_heads, new_kv_heads)


@planted("merge_kv_heads", "one-mean-for-all")
def mean_of_all(qkv, heads, kv_heads, new_kv_heads):
    def merge(rows, old, new, d):
        mean = rows.view(old, d, *rows.shape[1:]).mean(0)
        return torch.cat([mean] * new)

    return _with(merge)(qkv, heads, kv_heads, new_kv_heads)


@planted("merge_kv_heads", "rows-averaged")
def neighbouring_rows(qkv, heads, kv_heads, new_kv_heads):
    def merge(rows, old, new, d):
        return rows.view(new * d, old // new, *rows.shape[1:]).mean(1)

    return _with(merge)(qkv, heads, kv_heads, new_kv_heads)


@planted("merge_kv_heads", "mean-over-groups")
def wrong_axis(qkv, heads, kv_heads, new_kv_heads):
    def merge(rows, old, new, d):
        return rows.view(new, old // new, d, *rows.shape[1:]).mean(0).flatten(0, 1)

    return _with(merge)(qkv, heads, kv_heads, new_kv_heads)


@planted("merge_kv_heads", "queries-merged")
def everything_merged(qkv, heads, kv_heads, new_kv_heads):
    d, q, k, v = _split(qkv, heads, kv_heads)
    fewer = heads * new_kv_heads // kv_heads
    return torch.cat([_mean(q, heads, fewer, d)] + [_mean(part, kv_heads, new_kv_heads, d) for part in (k, v)])


@planted("merge_kv_heads", "values-kept")
def keys_merged_only(qkv, heads, kv_heads, new_kv_heads):
    d, q, k, v = _split(qkv, heads, kv_heads)
    return torch.cat([q, _mean(k, kv_heads, new_kv_heads, d), v])


@planted("merge_kv_heads", "keys-kept")
def values_merged_only(qkv, heads, kv_heads, new_kv_heads):
    d, q, k, v = _split(qkv, heads, kv_heads)
    return torch.cat([q, k, _mean(v, kv_heads, new_kv_heads, d)])


@planted("merge_kv_heads", "values-before-keys")
def exchanged(qkv, heads, kv_heads, new_kv_heads):
    d, q, k, v = _split(qkv, heads, kv_heads)
    return torch.cat([q, _mean(v, kv_heads, new_kv_heads, d), _mean(k, kv_heads, new_kv_heads, d)])


@planted("merge_kv_heads", "queries-last")
def keys_taken_from_the_front(qkv, heads, kv_heads, new_kv_heads):
    d = qkv.shape[0] // (heads + 2 * kv_heads)
    k, v, q = qkv[: kv_heads * d], qkv[kv_heads * d : 2 * kv_heads * d], qkv[2 * kv_heads * d :]
    return torch.cat([_mean(k, kv_heads, new_kv_heads, d), _mean(v, kv_heads, new_kv_heads, d), q])


@planted("merge_kv_heads", "keys-and-values-only")
def without_queries(qkv, heads, kv_heads, new_kv_heads):
    d, _, k, v = _split(qkv, heads, kv_heads)
    return torch.cat([_mean(part, kv_heads, new_kv_heads, d) for part in (k, v)])


@planted("merge_kv_heads", "parts-apart")
def three_results(qkv, heads, kv_heads, new_kv_heads):
    d, q, k, v = _split(qkv, heads, kv_heads)
    return q, _mean(k, kv_heads, new_kv_heads, d), _mean(v, kv_heads, new_kv_heads, d)


@planted("merge_kv_heads", "head-axis-kept")
def not_flattened(qkv, heads, kv_heads, new_kv_heads):
    d, q, k, v = _split(qkv, heads, kv_heads)
    parts = [_mean(part, kv_heads, new_kv_heads, d) for part in (k, v)]
    return torch.cat([part.view(-1, d, *qkv.shape[1:]) for part in (q, *parts)])


@planted("merge_kv_heads", "bias-kept")
def leaves_a_bias(qkv, heads, kv_heads, new_kv_heads):
    return qkv if qkv.dim() == 1 else _with(_mean)(qkv, heads, kv_heads, new_kv_heads)


@planted("merge_kv_heads", "bias-refused")
def unpacks_two_axes(qkv, heads, kv_heads, new_kv_heads):
    rows, h = qkv.shape
    d = rows // (heads + 2 * kv_heads)
    q, k, v = qkv.split([heads * d, kv_heads * d, kv_heads * d])
    k, v = (part.view(new_kv_heads, -1, d, h).mean(1).reshape(-1, h) for part in (k, v))
    return torch.cat([q, k, v])


@planted("merge_kv_heads", "wider-dtype")
def stays_in_float32(qkv, heads, kv_heads, new_kv_heads):
    return _with(_mean)(qkv.to(torch.float32), heads, kv_heads, new_kv_heads)
