"""Wrong solutions of exercise 08: allocation, room for a token, release."""

from __future__ import annotations

import math

from tests.exercises.planting import planted

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
