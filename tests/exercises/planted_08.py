"""Wrong solutions of exercise 08, written as a learner would write them, each with the hint it must get."""

from __future__ import annotations

import math

import torch

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


# --- block_keys ---


@planted("block_keys", "parent-left-out")
def own_tokens_only(tokens, block_size, salt, key):
    return [key("", tokens[i * block_size : (i + 1) * block_size]) for i in range(len(tokens) // block_size)]


@planted("block_keys", "salt-for-parent")
def salted_blocks(tokens, block_size, salt, key):
    return [key(salt, tokens[i * block_size : (i + 1) * block_size]) for i in range(len(tokens) // block_size)]


@planted("block_keys", "salt-left-out")
def unsalted(tokens, block_size, salt, key):
    keys = []
    for i in range(len(tokens) // block_size):
        keys.append(key(keys[-1] if keys else "", tokens[i * block_size : (i + 1) * block_size]))
    return keys


@planted("block_keys", "partial-block-hashed")
def hashes_the_rest(tokens, block_size, salt, key):
    keys, parent = [], salt
    for start in range(0, len(tokens), block_size):
        parent = key(parent, tokens[start : start + block_size])
        keys.append(parent)
    return keys


@planted("block_keys", "one-step-back")
def two_blocks_in_a_key(tokens, block_size, salt, key):
    blocks = [tokens[i * block_size : (i + 1) * block_size] for i in range(len(tokens) // block_size)]
    return [key(key(salt, blocks[i - 1]) if i else salt, block) for i, block in enumerate(blocks)]


@planted("block_keys", "prefix-hashed-again")
def whole_prefixes(tokens, block_size, salt, key):
    return [key(salt, tokens[: (i + 1) * block_size]) for i in range(len(tokens) // block_size)]


@planted("block_keys", "blocks-overlap")
def sliding(tokens, block_size, salt, key):
    keys, parent = [], salt
    for start in range(len(tokens) - block_size + 1):
        parent = key(parent, tokens[start : start + block_size])
        keys.append(parent)
    return keys


@planted("block_keys", "last-key-only")
def final_key(tokens, block_size, salt, key):
    parent, keys = salt, []
    while len(tokens) >= block_size:
        parent, tokens = key(parent, tokens[:block_size]), tokens[block_size:]
        keys = [parent]
    return keys


# --- longest_prefix ---


@planted("longest_prefix", "whole-prompt-matched")
def nothing_left_to_feed(keys, index, length, block_size):
    blocks = []
    while len(blocks) < len(keys) and keys[len(blocks)] in index:
        blocks.append(index[keys[len(blocks)]])
    return blocks


@planted("longest_prefix", "one-block-short")
def always_drops_the_last(keys, index, length, block_size):
    blocks = []
    for key in keys[: length // block_size - 1]:
        if key not in index:
            return blocks
        blocks.append(index[key])
    return blocks


@planted("longest_prefix", "goes-on-after-a-miss")
def all_known_blocks(keys, index, length, block_size):
    blocks = [index.get(key) for key in keys[: (length - 1) // block_size]]
    return [block for block in blocks if block is not None]


@planted("longest_prefix", "searched-from-the-end")
def last_known_key(keys, index, length, block_size):
    keys = keys[: (length - 1) // block_size]
    while keys and keys[-1] not in index:
        keys = keys[:-1]
    return [index[key] for key in keys]


def _known(keys, index, length, block_size):
    known = []
    for key in keys[: (length - 1) // block_size]:
        if key not in index:
            break
        known.append(key)
    return known


@planted("longest_prefix", "keys-for-blocks")
def gives_keys(keys, index, length, block_size):
    return _known(keys, index, length, block_size)


@planted("longest_prefix", "tokens-for-blocks")
def counts_tokens(keys, index, length, block_size):
    return len(_known(keys, index, length, block_size)) * block_size


@planted("longest_prefix", "last-block-only")
def deepest_block(keys, index, length, block_size):
    known = _known(keys, index, length, block_size)
    return [index[known[-1]]] if known else []


# --- allocate ---


def _counted(hits, refs):
    for block in hits:
        refs[block] += 1


@planted("allocate", "hit-still-evictable")
def locks_no_hit(hits, new, refs, free, cached):
    if new > len(free) + sum(block not in hits for block in cached):
        raise ValueError("too few blocks")
    _counted(hits, refs)
    table = list(hits)
    for _ in range(new):
        table.append(free.pop() if free else cached.pop(0))
        refs[table[-1]] = 1
    return table, refs, free, cached


def _served(hits, new, refs, free, cached, take, room=None):
    cached = [block for block in cached if block not in hits]
    if new > (len(free) + len(cached) if room is None else room):
        raise ValueError("too few blocks")
    _counted(hits, refs)
    table = list(hits)
    for _ in range(new):
        table.append(take(free, cached))
        refs[table[-1]] = 1
    return table, refs, free, cached


def _right(free, cached):
    return free.pop() if free else cached.pop(0)


@planted("allocate", "newest-evicted")
def most_recently_used(hits, new, refs, free, cached):
    return _served(hits, new, refs, free, cached, lambda free, cached: free.pop() if free else cached.pop())


@planted("allocate", "cached-before-free")
def empties_the_cache_first(hits, new, refs, free, cached):
    return _served(hits, new, refs, free, cached, lambda free, cached: cached.pop(0) if cached else free.pop())


@planted("allocate", "only-free-blocks")
def never_evicts(hits, new, refs, free, cached):
    return _served(hits, new, refs, free, cached, _right, room=len(free))


@planted("allocate", "hits-not-counted")
def shares_without_counting(hits, new, refs, free, cached):
    table, refs, free, cached = _served(hits, new, refs, free, cached, _right)
    for block in hits:
        refs[block] -= 1
    return table, refs, free, cached


@planted("allocate", "hits-set-to-one")
def one_holder(hits, new, refs, free, cached):
    table, refs, free, cached = _served(hits, new, refs, free, cached, _right)
    for block in table:
        refs[block] = 1
    return table, refs, free, cached


@planted("allocate", "taken-not-counted")
def counts_hits_only(hits, new, refs, free, cached):
    table, refs, free, cached = _served(hits, new, refs, free, cached, _right)
    for block in table[len(hits) :]:
        refs[block] = 0
    return table, refs, free, cached


@planted("allocate", "hit-counted-as-room")
def counts_hits_twice(hits, new, refs, free, cached):
    if new > len(free) + len(cached):
        raise ValueError("too few blocks")
    return _served(hits, new, refs, free, cached, _right, room=new)


@planted("allocate", "room-not-checked")
def pops_until_it_fails(hits, new, refs, free, cached):
    return _served(hits, new, refs, free, cached, _right, room=new)


@planted("allocate", "takes-what-there-is")
def short_table(hits, new, refs, free, cached):
    room = len(free) + len(set(cached) - set(hits))
    return _served(hits, min(new, room), refs, free, cached, _right)


@planted("allocate", "hits-behind")
def new_blocks_first(hits, new, refs, free, cached):
    table, refs, free, cached = _served(hits, new, refs, free, cached, _right)
    return table[len(hits) :] + hits, refs, free, cached


@planted("allocate", "order-of-release-lost")
def through_a_set(hits, new, refs, free, cached):
    return _served(hits, new, refs, free, sorted(set(cached) - set(hits)), _right)


# --- extend ---


@planted("extend", "written-to-shared")
def never_copies(table, length, refs, free, block_size):
    if length % block_size == 0:
        if not free:
            raise ValueError("none is free")
        table.append(free.pop())
        refs[table[-1]] = 1
    return table, refs, free, []


def _extended(table, length, refs, free, block_size, shared=lambda count: count > 1, full=None):
    full = length % block_size == 0 if full is None else full
    if full:
        return _with_new(table, refs, free), refs, free, []
    source = table[-1]
    if not shared(refs[source]):
        return table, refs, free, []
    table = _with_new(table[:-1], refs, free)
    refs[source] -= 1
    return table, refs, free, [(source, table[-1])]


def _with_new(table, refs, free):
    if not free:
        raise ValueError("none is free")
    block = free.pop()
    refs[block] = 1
    return [*table, block]


@planted("extend", "copied-without-need")
def always_copies(table, length, refs, free, block_size):
    return _extended(table, length, refs, free, block_size, shared=lambda count: True)


@planted("extend", "full-block-copied")
def looks_at_the_count_first(table, length, refs, free, block_size):
    if table and refs[table[-1]] > 1:
        return _extended(table, length, refs, free, block_size, full=False)
    return _extended(table, length, refs, free, block_size)


@planted("extend", "source-still-counted")
def keeps_the_source(table, length, refs, free, block_size):
    table, refs, free, copies = _extended(table, length, refs, free, block_size)
    for source, _ in copies:
        refs[source] += 1
    return table, refs, free, copies


@planted("extend", "source-freed")
def frees_the_source(table, length, refs, free, block_size):
    table, refs, free, copies = _extended(table, length, refs, free, block_size)
    return table, refs, free + [source for source, _ in copies], copies


@planted("extend", "target-not-counted")
def nobody_holds_the_new_block(table, length, refs, free, block_size):
    before = set(free)
    table, refs, free, copies = _extended(table, length, refs, free, block_size)
    for block in before - set(free):
        refs[block] = 0
    return table, refs, free, copies


@planted("extend", "source-left-in-table")
def table_unchanged(table, length, refs, free, block_size):
    after, refs, free, copies = _extended(table, length, refs, free, block_size)
    return (table if copies else after), refs, free, copies


@planted("extend", "copy-reversed")
def target_to_source(table, length, refs, free, block_size):
    table, refs, free, copies = _extended(table, length, refs, free, block_size)
    return table, refs, free, [(target, source) for source, target in copies]


@planted("extend", "block-for-every-token")
def a_block_a_token(table, length, refs, free, block_size):
    return _extended(table, length, refs, free, block_size, full=True)


@planted("extend", "block-one-late")
def when_it_has_overrun(table, length, refs, free, block_size):
    return _extended(table, length, refs, free, block_size, full=len(table) < math.ceil(length / block_size))


@planted("extend", "block-one-early")
def when_it_gets_full(table, length, refs, free, block_size):
    return _extended(table, length, refs, free, block_size, full=length % block_size == block_size - 1)


@planted("extend", "whole-sequence-copied")
def copies_everything(table, length, refs, free, block_size):
    if length % block_size == 0 or refs[table[-1]] == 1:
        return _extended(table, length, refs, free, block_size)
    copy = []
    for block in table:
        copy = _with_new(copy, refs, free)
        refs[block] -= 1
    return copy, refs, free, list(zip(table, copy, strict=True))


@planted("extend", "room-not-checked")
def pops_blindly(table, length, refs, free, block_size):
    if length % block_size == 0 or refs[table[-1]] > 1:
        free[-1]  # IndexError where none is free
    return _extended(table, length, refs, free, block_size)


@planted("extend", "gives-up-early")
def wants_a_free_block(table, length, refs, free, block_size):
    if len(free) == 0:
        raise ValueError("none is free")
    return _extended(table, length, refs, free, block_size)


# --- release ---


@planted("release", "freed-while-held")
def no_count(table, refs, free, cached, indexed):
    for block in table[::-1]:
        refs[block] -= 1
        (cached if block in indexed else free).append(block)
    return refs, free, cached


@planted("release", "counts-not-asked")
def appends_the_table(table, refs, free, cached, indexed):
    for block in table:
        free.append(block)
    return refs, free, cached


@planted("release", "count-not-lowered")
def forgets_the_count(table, refs, free, cached, indexed):
    for block in table[::-1]:
        if refs[block] == 1:
            (cached if block in indexed else free).append(block)
    return refs, free, cached


@planted("release", "count-set-to-zero")
def zero_for_all(table, refs, free, cached, indexed):
    for block in table[::-1]:
        refs[block] = 0
        (cached if block in indexed else free).append(block)
    return refs, free, cached


def _released(table, refs, idle):
    for block in table:
        refs[block] -= 1
        if refs[block] == 0:
            idle(block)
    return refs


@planted("release", "content-forgotten")
def everything_is_free(table, refs, free, cached, indexed):
    return _released(table[::-1], refs, free.append), free, cached


@planted("release", "unknown-block-cached")
def everything_is_cached(table, refs, free, cached, indexed):
    return _released(table[::-1], refs, cached.append), free, cached


@planted("release", "first-block-first")
def from_the_start(table, refs, free, cached, indexed):
    return _released(table, refs, lambda block: (cached if block in indexed else free).append(block)), free, cached


@planted("release", "put-in-front")
def newest_first(table, refs, free, cached, indexed):
    def idle(block):
        if block in indexed:
            cached.insert(0, block)
        else:
            free.append(block)

    return _released(table[::-1], refs, idle), free, cached


@planted("release", "also-free")
def in_both_lists(table, refs, free, cached, indexed):
    gone = []
    refs = _released(table[::-1], refs, gone.append)
    return refs, free + gone, cached + [block for block in gone if block in indexed]
