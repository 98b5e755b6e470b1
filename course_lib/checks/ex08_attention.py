"""Exercise 08, second part: attention of one decode step over blocks that lie anywhere.

Letters: H query heads, K KV heads, d size of a head, b tokens per block, n tokens of the sequence.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.compare import compare
from course_lib.checks.core import Case, Mistake, Problem, Property


def paged_attention(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, length: int) -> Tensor:
    return _attention(query, keys, values, table, length)


def _gather(pool: Tensor, table: Tensor, length: int) -> Tensor:
    """[n, K, d]: the sequence's keys or values, in order."""
    return pool[table[: -(-length // pool.shape[1])]].flatten(0, 1)[:length]


def _interleave(x: Tensor, group: int) -> Tensor:
    return x.repeat_interleave(group, dim=1)


def _weights(scores: Tensor, length: int) -> Tensor:
    return scores.softmax(dim=-1)


def _attention(
    query, keys, values, table, length, *, gather=(_gather,) * 2, spread=_interleave, scale=math.sqrt, weights=_weights
) -> Tensor:
    """Gather, then attend, with one of the parts replaced by a wrong one."""
    found = (gather_one(pool, table, length) for gather_one, pool in zip(gather, (keys, values), strict=True))
    keys, values = (spread(x, query.shape[0] // x.shape[1]) for x in found)  # [n, H, d]
    scores = torch.einsum("hd,nhd->hn", query, keys) / scale(query.shape[-1])
    return torch.einsum("hn,nhd->hd", weights(scores, length), values)


def _whole_blocks(pool: Tensor, table: Tensor, length: int) -> Tensor:
    return pool[table[: -(-length // pool.shape[1])]].flatten(0, 1)


def _whole_table(pool: Tensor, table: Tensor, length: int) -> Tensor:
    return pool[table].flatten(0, 1)


def _pool_in_order(pool: Tensor, table: Tensor, length: int) -> Tensor:
    return pool.flatten(0, 1)[:length]


def _zeroed(pool: Tensor, table: Tensor, length: int) -> Tensor:
    found = _whole_table(pool, table, length).clone()
    found[length:] = 0
    return found


def _without_zeros(pool: Tensor, table: Tensor, length: int) -> Tensor:
    return pool[table[table != 0]].flatten(0, 1)[:length]


def _full_blocks(pool: Tensor, table: Tensor, length: int) -> Tensor:
    return pool[table[: length // pool.shape[1]]].flatten(0, 1)


def _zero_scores(scores: Tensor, length: int) -> Tensor:
    scores = scores.clone()
    scores[:, length:] = 0
    return scores.softmax(dim=-1)


def _cut_after_softmax(scores: Tensor, length: int) -> Tensor:
    return scores.softmax(dim=-1) * (torch.arange(scores.shape[1]) < length)


def _mean_of_blocks(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, length: int) -> Tensor:
    """A softmax of its own in each block, and the mean of the blocks' results."""
    b = keys.shape[1]
    blocks = range(-(-length // b))
    parts = [paged_attention(query, keys, values, table[i : i + 1], min(b, length - i * b)) for i in blocks]
    return torch.stack(parts).mean(dim=0)


def _random_step(rng: Random, H: int, K: int, b: int, length: int, padding: int = 2, d: int = 8) -> tuple[Any, ...]:
    """A pool full of other sequences' values, and a table in random order, padded with 0, which is no block of it."""
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    needed = -(-length // b)
    blocks = 2 * needed + 2
    query = 2 * torch.randn(H, d, generator=generator)
    keys, values = (torch.randn(blocks, b, K, d, generator=generator) for _ in range(2))
    table = torch.tensor(rng.sample(range(1, blocks), needed) + [0] * padding, dtype=torch.int32)
    return query, keys, values, table, length


def _same(views: list[dict[str, Any]]) -> str | None:
    difference = compare(views[1]["the result"], views[0]["the result"], "the result")
    return difference and difference.text


def _moved(step: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same sequence in other blocks: the pool is turned until the sequence's first block is block 0."""
    query, keys, values, table, length = step
    turned = (table - table[0]) % len(keys)
    turned[-(-length // keys.shape[1]) :] = 0  # the padding
    shift = -int(table[0])
    return query, keys.roll(shift, 0), values.roll(shift, 0), turned, length


def _overwritten(step: tuple[Any, ...]) -> tuple[Any, ...]:
    """Other values in every slot that does not hold a token of the sequence."""
    query, keys, values, table, length = step
    b = keys.shape[1]
    own = torch.zeros(keys.shape[:2], dtype=torch.bool)
    for p in range(length):
        own[table[p // b], p % b] = True
    own = own[..., None, None]
    return query, keys.where(own, -keys), values.where(own, values + 40.0), table, length


def _public(rng: Random) -> list[Case | Property]:
    pool = torch.tensor([[50.0, 60.0], [4.0, 90.0], [2.0, 6.0]])[:, :, None, None]  # [3, 2, 1, 1]
    table = torch.tensor([2, 1, 0], dtype=torch.int32)
    step = _random_step(rng, H=4, K=2, b=4, length=10)
    return [
        # A query of zeros weighs all keys alike: the mean of 2 and 6 in block 2 and of 4, the first token in block 1.
        Case("worked example", (torch.zeros(1, 1), pool, pool, table, 3), {"the result": torch.tensor([[4.0]])}),
        Case("edge case", _random_step(rng, H=4, K=2, b=4, length=1)),
        Case("edge case", _random_step(rng, H=4, K=2, b=4, length=8)),  # the last block is full
        Case("edge case", _moved(_random_step(rng, H=3, K=3, b=4, length=7, padding=0))),  # block 0 is its own here
        Case("reference", step),
        Property("where the blocks lie changes nothing", (step, _moved(step)), _same),
        Property("what lies in slots of others changes nothing", (step, _overwritten(step)), _same),
        Case("reference", _random_step(rng, H=6, K=2, b=16, length=35)),
    ]


PAGED_ATTENTION = Problem(
    name="paged_attention",
    arguments=("query", "keys", "values", "table", "length"),
    reference=paged_attention,
    public=_public,
    hidden=lambda rng: [
        Case("reference", _random_step(rng, K * rng.choice((2, 3)), K, b, rng.randint(2, 60)))
        for K, b in ((1, 16), (2, 8), (4, rng.randint(2, 5)))
    ],
    mistakes=(
        Mistake(
            "last-block-not-cut",
            "The last block is partly filled, and stale keys lie behind its tokens: use the first `length` keys only.",
            lambda *a: _attention(*a, gather=(_whole_blocks, _whole_blocks)),
        ),
        Mistake(
            "padding-leaks",
            "The table is padded with 0, and block 0 belongs to another sequence: use the first `length` keys only.",
            lambda *a: _attention(*a, gather=(_whole_table, _whole_table)),
        ),
        Mistake(
            "zero-taken-for-padding",
            "Block 0 is a block like the others: what is padding follows from `length`, not from the entry.",
            lambda *a: _attention(*a, gather=(_without_zeros, _without_zeros)),
        ),
        Mistake(
            "table-ignored",
            "The keys were read in the order of the pool: the sequence's blocks are keys[table[0]], keys[table[1]] ...",
            lambda *a: _attention(*a, gather=(_pool_in_order, _pool_in_order)),
        ),
        Mistake(
            "values-not-gathered",
            "The keys come through the table, the values do not; both lie in the same blocks.",
            lambda *a: _attention(*a, gather=(_gather, _pool_in_order)),
        ),
        Mistake(
            "full-blocks-only",
            "The tokens of the last block are missing: a partly filled block holds keys too.",
            lambda *a: _attention(*a, gather=(_full_blocks, _full_blocks)),
        ),
        Mistake(
            "own-key-left-out",
            "`length` counts the new token, whose key is in the cache already: a token attends to itself.",
            lambda query, keys, values, table, length: _attention(query, keys, values, table, length - 1),
        ),
        Mistake(
            "stale-keys-zeroed",
            "A key of zeros still gets weight e^0 in the softmax: leave stale slots out, or give their scores -inf.",
            lambda *a: _attention(*a, gather=(_zeroed, _zeroed)),
        ),
        Mistake(
            "stale-scores-zeroed",
            "A score of 0 still gets weight e^0 = 1 in the softmax: stale slots need -inf, or leave them out.",
            lambda *a: _attention(*a, gather=(_whole_table, _whole_table), weights=_zero_scores),
        ),
        Mistake(
            "cut-after-softmax",
            "Cut before the softmax: stale keys have taken their share of the weights, and the rest sums to under 1.",
            lambda *a: _attention(*a, gather=(_whole_table, _whole_table), weights=_cut_after_softmax),
        ),
        Mistake(
            "softmax-per-block",
            "Blocks are not weighed alike: one softmax over all keys, or carry the running maximum and sum.",
            _mean_of_blocks,
        ),
        Mistake(
            "heads-tiled",
            "Query head i reads KV head i // (H / K): neighbours share one. Use repeat_interleave, not repeat.",
            lambda *a: _attention(*a, spread=lambda x, group: x.repeat(1, group, 1)),
        ),
        Mistake(
            "unscaled",
            "Divide the scores by sqrt(d) before the softmax.",
            lambda *a: _attention(*a, scale=lambda d: 1),
        ),
    ),
)
