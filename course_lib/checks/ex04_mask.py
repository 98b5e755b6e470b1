"""Exercise 04, second part: which keys a query of a layer with a window and sinks sees, wherever they lie.

Letters: w window, s sinks, t new tokens, n keys.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.compare import compare
from course_lib.checks.core import Case, Mistake, Problem, Property
from course_lib.checks.ex04_ring import at, ring_keys


def window_mask(queries: Tensor, keys: Tensor, window: int, sinks: int) -> Tensor:
    return _mask(queries, keys, window, sinks)


def _mask(
    queries, keys, window, sinks, *,
    causal=lambda key, query: key <= query,
    near=lambda key, query, w, s: key > query - w,
    sink=lambda key, query, w, s: key < s,
    stored=lambda key: key >= 0,
) -> Tensor:  # fmt: skip
    """`window_mask` with one part replaced by a wrong one."""
    query, key = queries[:, None], keys[None, :]
    return stored(key) & causal(key, query) & (near(key, query, window, sinks) | sink(key, query, window, sinks))


def _sinks_always(queries: Tensor, keys: Tensor, window: int, sinks: int) -> Tensor:
    return _mask(queries, keys, window, 0) | ((keys >= 0) & (keys < sinks))


def _chunk(cached: int, new: int, window: int, sinks: int) -> tuple[Tensor, Tensor, int, int]:
    """A chunk of new tokens behind a ring that has seen `cached` tokens."""
    queries = torch.arange(cached, cached + new)
    return queries, torch.cat((ring_keys(cached, window, sinks), queries)), window, sinks


def _any_order(views: list[dict[str, Any]]) -> str | None:
    difference = compare(views[1]["the result"], views[0]["the result"].flip(1), "the mask of the keys turned round")
    return difference and difference.text


def _public(rng: Random) -> list[Case | Property]:
    queries, keys, window, sinks = _chunk(cached=9, new=3, window=4, sinks=1)
    return [
        # w = 3, s = 1. The query at 4 sees the keys 2, 3, 4 and the sink; the one at 5 sees 3, 4, 5 and the sink.
        Case(
            "worked example",
            (at(4, 5), at(0, 1, 2, 3, 4, 5), 3, 1),
            {"the result": torch.tensor([[1, 0, 1, 1, 1, 0], [1, 0, 0, 1, 1, 1]]).bool()},
        ),
        Case("edge case", (at(0, 1, 2), at(0, 1, 2), 8, 2)),  # a sink of the future is hidden too
        Case("edge case", _chunk(cached=2, new=2, window=4, sinks=2)),  # slots that are still empty
        Case("edge case", (at(9), at(8, 9, 6, 7), 4, 0)),
        Case("edge case", (at(5), at(5, 4), 1, 0)),
        Case("edge case", _chunk(cached=11, new=7, window=3, sinks=2)),  # a chunk longer than the window
        Property(
            "a mask follows the keys, in whatever order they lie",
            ((queries, keys, window, sinks), (queries, keys.flip(0), window, sinks)),
            _any_order,
        ),
        Case("reference", _chunk(cached=30, new=6, window=8, sinks=4)),
    ]


WINDOW_MASK = Problem(
    name="window_mask",
    arguments=("queries", "keys", "window", "sinks"),
    reference=window_mask,
    public=_public,
    hidden=lambda rng: [
        Case("reference", _chunk(rng.randint(1, 40), rng.randint(2, 9), rng.randint(3, 12), sinks))
        for sinks in (0, 1, rng.randint(2, 5))
    ],
    mistakes=(
        Mistake(
            "no-window",
            "Every earlier key is visible here: those at or before query - w are hidden, unless they are sinks.",
            lambda *a: _mask(*a, near=lambda key, query, w, s: key > -1),
        ),
        Mistake(
            "not-causal",
            "Keys of the future are visible: a query sees keys at its own position and before it.",
            lambda *a: _mask(*a, causal=lambda key, query: key >= 0),
        ),
        Mistake(
            "window-too-long",
            "A window of w tokens counts the query itself: key > query - w, where here one key more is visible.",
            lambda *a: _mask(*a, near=lambda key, query, w, s: key >= query - w),
        ),
        Mistake(
            "window-too-short",
            "A window of w tokens counts the query and the w - 1 before it: key > query - w.",
            lambda *a: _mask(*a, near=lambda key, query, w, s: key > query - w + 1),
        ),
        Mistake(
            "sinks-forgotten",
            "The sinks, positions 0 to s - 1, stay visible when the window has left them.",
            lambda *a: _mask(*a, sink=lambda key, query, w, s: key < 0),
        ),
        Mistake(
            "sinks-not-causal",
            "A sink is hidden from the tokens before it, as any key is: causality holds for sinks too.",
            _sinks_always,
        ),
        Mistake(
            "one-sink-too-many",
            "There are s sinks, at the positions 0 to s - 1: key < s, not <=.",
            lambda *a: _mask(*a, sink=lambda key, query, w, s: key <= s),
        ),
        Mistake(
            "sinks-in-the-window",
            "The sinks stay beside the window: it has w tokens, not w - s.",
            lambda *a: _mask(*a, near=lambda key, query, w, s: key > query - (w - s)),
        ),
        Mistake(
            "empty-slots-visible",
            "A slot with position -1 holds no key yet. -1 is below every query and below s: ask for key >= 0 as well.",
            lambda *a: _mask(*a, stored=lambda key: key >= -1),
        ),
        Mistake(
            "own-token-hidden",
            "A token attends to itself: key position <= query position, not <.",
            lambda *a: _mask(*a, causal=lambda key, query: key < query),
        ),
        Mistake(
            "slots-for-positions",
            "The column's number is where a key lies; where it stands in the text is keys[column].",
            lambda q, k, w, s: _mask(q, torch.arange(len(k)), w, s),
        ),
        Mistake(
            "one-window-for-all",
            "Each query has a window of its own, behind its own position; here all have the last one's.",
            lambda *a: _mask(*a, near=lambda key, query, w, s: key > query.max() - w),
        ),
        Mistake(
            "inverted",
            "True means that a key may be seen; here True marks the hidden ones.",
            lambda *a: ~window_mask(*a),
        ),
        Mistake(
            "transposed",
            "Rows are queries, columns are keys: [t, n].",
            lambda *a: window_mask(*a).T.contiguous(),
        ),
        Mistake(
            "additive-mask",
            "The mask is boolean; 0 and -inf are added to scores, which the engine does.",
            lambda *a: torch.zeros(len(a[0]), len(a[1])).masked_fill(~window_mask(*a), -math.inf),
        ),
    ),
)
