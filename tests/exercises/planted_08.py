"""Wrong solutions of exercise 08, written as a learner would write them, each with the hint it must get.

Those of the prefix cache and of the pool are in two files of their own.
"""

from __future__ import annotations

import math

import torch

from tests.exercises import planted_08_pool, planted_08_prefix  # noqa: F401
from tests.exercises.planting import planted

# --- block_count ---


@planted("block_count", "ceil-missing")
def rounds_down(tokens, block_size):
    blocks = tokens // block_size
    return blocks, blocks * block_size - tokens


@planted("block_count", "ceil-missing-in-count")
def rounds_down_but_knows_the_rest(tokens, block_size):
    rest = tokens % block_size
    return int(tokens / block_size), block_size - rest if rest else 0


@planted("block_count", "rounded-to-nearest")
def rounds(tokens, block_size):
    return round(tokens / block_size), -tokens % block_size


@planted("block_count", "always-one-more")
def one_more(tokens, block_size):
    blocks = tokens // block_size + 1
    return blocks, blocks * block_size - tokens


@planted("block_count", "full-block-called-empty")
def rest_of_a_full_block(tokens, block_size):
    return math.ceil(tokens / block_size), block_size - tokens % block_size


@planted("block_count", "filled-for-empty")
def modulo(tokens, block_size):
    return math.ceil(tokens / block_size), tokens % block_size


@planted("block_count", "waste-in-every-block")
def every_block_wastes(tokens, block_size):
    blocks = math.ceil(tokens / block_size)
    return blocks, blocks * ((block_size - tokens % block_size) % block_size)


@planted("block_count", "blocks-only")
def one_result(tokens, block_size):
    return math.ceil(tokens / block_size)


# --- slots ---


@planted("slots", "entry-for-block")
def place_in_the_table(table, positions, block_size):
    block = positions // block_size
    return block * block_size + positions % block_size


@planted("slots", "offset-left-out")
def first_slot_of_the_block(table, positions, block_size):
    return table.long()[positions // block_size] * block_size


@planted("slots", "restarts-in-every-block")
def counts_from_zero(table, positions, block_size):
    return positions % block_size


@planted("slots", "block-for-slot")
def forgets_the_block_size(table, positions, block_size):
    return table.long()[positions // block_size] + positions % block_size


@planted("slots", "position-for-offset")
def adds_the_position(table, positions, block_size):
    return table.long()[positions // block_size] * block_size + positions


@planted("slots", "table-length-for-block-size")
def wrong_size(table, positions, block_size):
    return table.long()[positions // block_size] * table.shape[0] + positions % block_size


@planted("slots", "one-block-for-all")
def block_of_the_first(table, positions, block_size):
    block = int(table[positions[0] // block_size]) if len(positions) else 0
    return block * block_size + positions % block_size


@planted("slots", "int32-product")
def product_in_int32(table, positions, block_size):
    first = table[positions // block_size] * block_size
    return first.long() + positions % block_size


@planted("slots", "int32-result")
def int32_throughout(table, positions, block_size):
    positions = positions.to(table.dtype)
    return table[positions // block_size] * block_size + positions % block_size


@planted("slots", "list-for-tensor")
def loop(table, positions, block_size):
    return [int(table[p // block_size]) * block_size + p % block_size for p in positions.tolist()]


# --- paged_attention ---


def _attend(query, k, v):
    group = query.shape[0] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = (query[:, None] * k.transpose(0, 1)).sum(-1) / query.shape[-1] ** 0.5
    return (scores.softmax(-1)[..., None] * v.transpose(0, 1)).sum(1)


@planted("paged_attention", "last-block-not-cut")
def all_slots_of_its_blocks(query, keys, values, table, length):
    blocks = table[: math.ceil(length / keys.shape[1])]
    return _attend(query, keys[blocks].flatten(0, 1), values[blocks].flatten(0, 1))


@planted("paged_attention", "padding-leaks")
def whole_table(query, keys, values, table, length):
    return _attend(query, keys[table].flatten(0, 1), values[table].flatten(0, 1))


@planted("paged_attention", "zero-taken-for-padding")
def drops_zeros(query, keys, values, table, length):
    blocks = [block for block in table.tolist() if block]
    return _attend(query, keys[blocks].flatten(0, 1)[:length], values[blocks].flatten(0, 1)[:length])


@planted("paged_attention", "table-ignored")
def as_it_lies(query, keys, values, table, length):
    return _attend(query, keys.flatten(0, 1)[:length], values.flatten(0, 1)[:length])


@planted("paged_attention", "values-not-gathered")
def keys_through_the_table(query, keys, values, table, length):
    return _attend(query, keys[table].flatten(0, 1)[:length], values.flatten(0, 1)[:length])


@planted("paged_attention", "full-blocks-only")
def loops_over_full_blocks(query, keys, values, table, length):
    blocks = [int(table[i]) for i in range(length // keys.shape[1])]
    return _attend(query, keys[blocks].flatten(0, 1), values[blocks].flatten(0, 1))


@planted("paged_attention", "own-key-left-out")
def without_itself(query, keys, values, table, length):
    k, v = keys[table].flatten(0, 1), values[table].flatten(0, 1)
    return _attend(query, k[: length - 1], v[: length - 1])


@planted("paged_attention", "stale-keys-zeroed")
def zeros_behind_the_end(query, keys, values, table, length):
    held = (torch.arange(len(table) * keys.shape[1]) < length)[:, None, None]
    return _attend(query, keys[table].flatten(0, 1) * held, values[table].flatten(0, 1) * held)


def _scores(query, keys, values, table):
    group = query.shape[0] // keys.shape[2]
    k, v = (pool[table].flatten(0, 1).repeat_interleave(group, dim=1).transpose(0, 1) for pool in (keys, values))
    return (k @ query[..., None])[..., 0] / query.shape[-1] ** 0.5, v  # [H, slots], [H, slots, d]


@planted("paged_attention", "stale-scores-zeroed")
def multiplies_scores_by_the_mask(query, keys, values, table, length):
    scores, v = _scores(query, keys, values, table)
    scores = scores * (torch.arange(scores.shape[1]) < length)
    return (scores.softmax(-1)[:, None] @ v)[:, 0]


@planted("paged_attention", "cut-after-softmax")
def cuts_the_weights(query, keys, values, table, length):
    scores, v = _scores(query, keys, values, table)
    return (scores.softmax(-1)[:, None, :length] @ v[:, :length])[:, 0]


@planted("paged_attention", "softmax-per-block")
def mean_over_blocks(query, keys, values, table, length):
    b, results = keys.shape[1], []
    for i in range(0, length, b):
        block = int(table[i // b])
        results.append(_attend(query, keys[block, : length - i], values[block, : length - i]))
    return sum(results) / len(results)


@planted("paged_attention", "heads-tiled")
def tiled_heads(query, keys, values, table, length):
    times = query.shape[0] // keys.shape[2]
    k, v = (pool[table].flatten(0, 1)[:length].repeat(1, times, 1) for pool in (keys, values))
    return _attend(query, k, v)


@planted("paged_attention", "unscaled")
def no_scale(query, keys, values, table, length):
    return _attend(query * query.shape[-1] ** 0.5, *(pool[table].flatten(0, 1)[:length] for pool in (keys, values)))
