"""Exercise 08, fourth part: the block table of a new sequence, from found, free and evicted blocks."""

from __future__ import annotations

from random import Random
from typing import Any

from course_lib.checks.core import Case, Mistake, Outcome, Problem, Property, members
from course_lib.checks.ex08_pool import Lists, random_pool, recount


def allocate(hits: list[int], new: int, refs: list[int], free: list[int], cached: list[int]) -> Lists:
    return _allocate(hits, new, refs, free, cached)


def _room(hits: list[int], free: list[int], cached: list[int]) -> int:
    return len(free) + len(cached) - len(set(hits) & set(cached))


def _left(hits: list[int], cached: list[int]) -> list[int]:
    return [block for block in cached if block not in hits]


def _free_then_oldest(free: list[int], cached: list[int]) -> int:
    return free.pop() if free else cached.pop(0)


def _one_more(count: int) -> int:
    return count + 1


def _allocate(
    hits, new, refs, free, cached, *,
    room=_room, left=_left, take=_free_then_oldest, held=_one_more, first=1, join=lambda hits, taken: hits + taken,
) -> Lists:  # fmt: skip
    """`allocate` with one part replaced by a wrong one. held: new count of a hit. first: count of a block taken."""
    if new > room(hits, free, cached):
        raise ValueError(f"{new} blocks are needed and {room(hits, free, cached)} can be taken")
    for block in hits:
        refs[block] = held(refs[block])
    cached = left(hits, cached)
    taken = [take(free, cached) for _ in range(new)]
    for block in taken:
        refs[block] = first
    return join(hits, taken), refs, free, cached


def _what_there_is(hits: list[int], new: int, refs: list[int], free: list[int], cached: list[int]) -> Lists:
    return _allocate(hits, min(new, _room(hits, free, cached)), refs, free, cached)


def _random_allocation(rng: Random, total: int) -> tuple[Any, ...]:
    (refs, free, cached), held = random_pool(rng, total)
    hits = held[:2] + cached[-1:]
    return hits, len(free) + len(cached) - 2, refs, free, cached


allocated = members("the table", "refs", "free", "cached")

ALLOCATE = Problem(
    name="allocate",
    arguments=("hits", "new", "refs", "free", "cached"),
    reference=allocate,
    public=lambda rng: [
        # Block 0 is shared with a running sequence; the other block comes from the end of the free list.
        Case(
            "worked example",
            ([0], 1, [1, 0, 0, 0], [3, 2], [1]),
            allocated(Outcome(([0, 2], [2, 0, 1, 0], [3], [1]))),
        ),
        Case("edge case", ([], 2, [0, 0, 0], [2, 1, 0], [])),
        Case("edge case", ([1, 3], 1, [0, 0, 0, 0], [2, 0], [3, 1])),  # both hits were cached
        Case("edge case", ([], 3, [0, 0, 0, 0, 1], [2], [3, 0, 1])),  # one free block, two that are evicted
        Case("edge case", ([3], 1, [0, 0, 0, 0], [], [3, 1, 0, 2])),  # the oldest cached block is a hit: it must stay
        Case("edge case", ([], 2, [1, 0, 0], [1], [2])),  # fits exactly
        Case("edge case", ([], 3, [1, 0, 0], [1], [2]), raises="ValueError"),
        Case("edge case", ([2], 2, [1, 0, 0], [1], [2]), raises="ValueError"),  # the hit is no room
        Property("each block is held, free or cached", (([1], 2, [2, 0, 0, 0], [3], [1, 2]),), recount),
        Case("reference", _random_allocation(rng, 16)),
    ],
    hidden=lambda rng: [Case("reference", _random_allocation(rng, 4 * rng.randint(4, 9))) for _ in range(3)],
    view=allocated,
    mistakes=(
        Mistake(
            "hit-still-evictable",
            "A cached block that is hit has a holder again: take it out of `cached`, or it is evicted while in use.",
            lambda *a: _allocate(*a, left=lambda hits, cached: cached),
        ),
        Mistake(
            "newest-evicted",
            "Evict the block released longest ago, the first of `cached`, not the last.",
            lambda *a: _allocate(*a, take=lambda free, cached: free.pop() if free else cached.pop()),
        ),
        Mistake(
            "cached-before-free",
            "Take free blocks first: an evicted block's content is lost, a free one has none.",
            lambda *a: _allocate(*a, take=lambda free, cached: cached.pop(0) if cached else free.pop()),
        ),
        Mistake(
            "only-free-blocks",
            "Cached blocks can be taken too, the oldest first, once no block is free.",
            lambda *a: _allocate(*a, room=lambda hits, free, cached: len(free)),
        ),
        Mistake(
            "hits-not-counted",
            "One more table holds each hit: its reference count grows by 1.",
            lambda *a: _allocate(*a, held=lambda count: count),
        ),
        Mistake(
            "hits-set-to-one",
            "A hit may have other holders already: add 1 to its count; do not set it to 1.",
            lambda *a: _allocate(*a, held=lambda count: 1),
        ),
        Mistake(
            "taken-not-counted",
            "The new sequence holds the blocks that it takes: their count is 1.",
            lambda *a: _allocate(*a, first=0),
        ),
        Mistake(
            "hit-counted-as-room",
            "A cached block that is a hit cannot also be taken: it does not count as room.",
            lambda *a: _allocate(*a, room=lambda hits, free, cached: len(free) + len(cached)),
        ),
        Mistake(
            "room-not-checked",
            "Count what can be taken before anything is changed, and raise ValueError where it is too little.",
            lambda *a: _allocate(*a, room=lambda hits, free, cached: a[1]),
        ),
        Mistake(
            "takes-what-there-is",
            "A table that is too short overruns later: raise ValueError where the blocks are too few.",
            _what_there_is,
        ),
        Mistake(
            "hits-behind",
            "The hits hold the beginning of the prompt, so they stand first in the table.",
            lambda *a: _allocate(*a, join=lambda hits, taken: taken + hits),
        ),
        Mistake(
            "order-of-release-lost",
            "`cached` is in the order of release; sorting it, or a set, evicts the wrong block.",
            lambda *a: _allocate(*a, left=lambda hits, cached: sorted(_left(hits, cached))),
        ),
    ),
)
